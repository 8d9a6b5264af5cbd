// The network policy controller of kube-router for the nodes of a test bed.
//
// All nodes of a test bed are in the machine's network namespace, so one controller enforces the policies of all pods: it
// takes every pod for one of the node that its arguments name. The journal of the test bed removes its chains and sets.
package main

import (
	"fmt"
	"log"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/cloudnativelabs/kube-router/v2/pkg/utils"
	core "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: kube-router KUBECONFIG NODE SERVICE-RANGE READY-FILE")
	}
	kubeconfig, node, serviceRange, ready := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	if err := run(kubeconfig, node, serviceRange, ready); err != nil {
		log.Fatal(err)
	}
}

func run(kubeconfig, nodeName, serviceRange, ready string) error {
	access, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return err
	}
	config := options.NewKubeRouterConfig()
	config.EnableIPv4, config.EnableIPv6 = true, false
	config.RunFirewall = true
	config.HostnameOverride = nodeName
	config.ClusterIPCIDRs = []string{serviceRange}
	config.IPTablesSyncPeriod = 5 * time.Second

	node, err := utils.GetNodeObject(client, nodeName)
	if err != nil {
		return err
	}
	addresses, _ := utils.GetAllNodeIPs(node)
	ours := addresses[core.NodeInternalIP][0]

	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	if err := pods.SetTransform(onNode(ours)); err != nil {
		return err
	}
	stop := make(chan struct{})
	factory.Start(stop)
	factory.WaitForCacheSync(stop)

	commands, sets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return fmt.Errorf("iptables: %w", err)
	}
	var mutex sync.Mutex
	controller, err := netpol.NewNetworkPolicyController(client, config, pods, policies, namespaces, &mutex, commands, sets)
	if err != nil {
		return err
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods:       controller.PodEventHandler,
		namespaces: controller.NamespaceEventHandler,
		policies:   controller.NetworkPolicyEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	// The controller reports each finished synchronization here.
	beats := make(chan *healthcheck.ControllerHeartbeat, 10)
	go func() {
		for range beats {
			if err := os.WriteFile(ready, nil, 0o600); err != nil {
				log.Fatal(err)
			}
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	go controller.Run(beats, stop, &running)

	running.Wait()
	return nil
}

// onNode gives pods the address of this node, so that the controller takes them for local ones.
func onNode(address net.IP) cache.TransformFunc {
	return func(object any) (any, error) {
		if pod, ok := object.(*core.Pod); ok && pod.Status.HostIP != "" {
			pod.Status.HostIP = address.String()
		}
		return object, nil
	}
}
