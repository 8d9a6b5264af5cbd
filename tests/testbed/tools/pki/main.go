// pki makes the keys and certificates of one cluster: a certificate authority, a serving certificate, the key that signs
// ServiceAccount tokens, and one client certificate per component. Python's standard library cannot make certificates.
//
//	pki -dir DIR -address 127.0.0.1,10.96.0.1 -name localhost,kubernetes -client FILE=USER[|GROUP] ...
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"log"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Longer than any test bed lives, short enough that a forgotten key is worth little.
const lifetime = 30 * 24 * time.Hour

type pair struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("pki: ")
	dir := flag.String("dir", ".", "folder to write to")
	addresses := flag.String("address", "127.0.0.1", "IP addresses of the serving certificate, separated by commas")
	names := flag.String("name", "localhost", "DNS names of the serving certificate, separated by commas")
	clients := map[string]pkix.Name{}
	flag.Func("client", "a client certificate: FILE=USER or FILE=USER|GROUP", func(value string) error {
		file, identity, _ := strings.Cut(value, "=")
		user, group, grouped := strings.Cut(identity, "|")
		subject := pkix.Name{CommonName: user}
		if grouped {
			subject.Organization = []string{group}
		}
		clients[file] = subject
		return nil
	})
	flag.Parse()

	authority := issue(&x509.Certificate{
		Subject:               pkix.Name{CommonName: "testbed"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}, nil)
	write(*dir, "ca", authority)

	server := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "testbed-server"},
		DNSNames:    strings.Split(*names, ","),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, address := range strings.Split(*addresses, ",") {
		ip := net.ParseIP(address)
		if ip == nil {
			log.Fatalf("-address: %q is not an IP address", address)
		}
		server.IPAddresses = append(server.IPAddresses, ip)
	}
	write(*dir, "server", issue(server, &authority))

	// The API server signs tokens with this key and checks them with the public key in its certificate.
	write(*dir, "service-account", issue(&x509.Certificate{Subject: pkix.Name{CommonName: "service-account"}}, &authority))

	for file, subject := range clients {
		write(*dir, file, issue(&x509.Certificate{
			Subject:     subject,
			KeyUsage:    x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}, &authority))
	}
}

// issue completes the template and signs it: by the authority, or by its own key where there is none.
func issue(template *x509.Certificate, authority *pair) pair {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template.SerialNumber = must(rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)))
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(lifetime)
	parent, signer := template, key
	if authority != nil {
		parent, signer = authority.certificate, authority.key
	}
	encoded := must(x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer))
	return pair{certificate: must(x509.ParseCertificate(encoded)), key: key}
}

func write(dir, name string, p pair) {
	key := must(x509.MarshalPKCS8PrivateKey(p.key))
	for suffix, block := range map[string]*pem.Block{
		".crt": {Type: "CERTIFICATE", Bytes: p.certificate.Raw},
		".key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
			log.Fatal(err)
		}
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
