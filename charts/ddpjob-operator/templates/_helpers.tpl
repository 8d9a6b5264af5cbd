{{- define "ddpjob-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* At most 52 characters, so that a name with a suffix still fits the 63 characters of a label. */}}
{{- define "ddpjob-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "ddpjob-operator.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "ddpjob-operator.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "ddpjob-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ddpjob-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The chart's own labels win over common labels of the same name. */}}
{{- define "ddpjob-operator.labels" -}}
{{- $own := include "ddpjob-operator.selectorLabels" . | fromYaml }}
{{- $_ := set $own "app.kubernetes.io/version" .Chart.AppVersion }}
{{- $_ := set $own "app.kubernetes.io/managed-by" .Release.Service }}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") }}
{{- merge $own .Values.commonLabels | toYaml }}
{{- end }}

{{- /* The metadata of an object. Call with a dict: root, name, and optionally namespace, labels and annotations. */}}
{{- define "ddpjob-operator.metadata" -}}
name: {{ toYaml .name }}
{{- with .namespace }}
namespace: {{ toYaml . }}
{{- end }}
labels:
  {{- merge (dict) (.labels | default dict) (include "ddpjob-operator.labels" .root | fromYaml) | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "ddpjob-operator.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "ddpjob-operator.fullname" .) "default") }}
{{- end }}

{{- /* An image reference. Call with a dict: root, name (operator or trainer), image (its values). */}}
{{- define "ddpjob-operator.image" -}}
{{- $repository := .image.repository | default (printf "%s/%s" .root.Values.imagePrefix .name) }}
{{- with .root.Values.global.imageRegistry }}
{{- $repository = regexReplaceAll "^[^/]+" $repository . }}
{{- end }}
{{- if .image.digest }}
{{- printf "%s@%s" $repository .image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (.image.tag | default .root.Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- /* The operator's rights in a namespace that it watches: the same rules for both scopes. */}}
{{- define "ddpjob-operator.rules" -}}
# delete is for ttlSecondsAfterFinished.
- apiGroups: [ddpjob.dev]
  resources: [ddpjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [ddpjob.dev]
  resources: [ddpjobs/status]
  verbs: [patch]
# For blockOwnerDeletion on the objects of a job, where the admission plugin OwnerReferencesPermissionEnforcement asks for it.
- apiGroups: [ddpjob.dev]
  resources: [ddpjobs/finalizers]
  verbs: [update]
# deletecollection is for suspension, ttlSecondsAfterFinished and the pods of a deleted job; a restart deletes its pods one by one.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete, deletecollection, patch]
# For progress lines, and for the exception of a failed rank.
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
{{- if .Values.networkPolicy.jobs }}
# delete is for jobs that opt out while they run.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, delete]
{{- end }}
# list: only events say why a pod's volume cannot be mounted, and that an autoscaler adds nodes.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
{{- if include "ddpjob-operator.mayUse" (dict "root" . "provider" "kueue" "apis" (list "kueue.x-k8s.io/v1beta2" "kueue.x-k8s.io/v1beta1")) }}
# To say what a job waits behind. Groups are made and closed by labels and annotations of pods.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads, localqueues]
  verbs: [get, list, watch]
{{- end }}
{{- /* With the kind, because Helm without a cluster counts v1beta1 of scheduling.k8s.io as served, which once had PriorityClasses. */}}
{{- $native := list "scheduling.k8s.io/v1beta1/PodGroup" "scheduling.k8s.io/v1alpha2" }}
{{- range $provider, $apis := dict "native" $native "volcano" (list "scheduling.volcano.sh/v1beta1") "coscheduling" (list "scheduling.x-k8s.io/v1alpha1") }}
{{- if include "ddpjob-operator.mayUse" (dict "root" $ "provider" $provider "apis" $apis) }}
- apiGroups: [{{ first $apis | splitList "/" | first }}]
  resources: [podgroups]
  verbs: [get, list, watch, create, delete{{ if ne $provider "volcano" }}, patch{{ end }}]
{{- end }}
{{- end }}
{{- end }}

{{- /* Not empty if the operator may use the scheduling provider: it is named, or it is served and the setting is auto. Call with
a dict: root, provider, and apis, the API versions of which one is served. */}}
{{- define "ddpjob-operator.mayUse" -}}
{{- $setting := .root.Values.scheduling.provider }}
{{- if eq $setting .provider }}yes{{ end }}
{{- if eq $setting "auto" }}
{{- range .apis }}{{ if $.root.Capabilities.APIVersions.Has . }}yes{{ end }}{{ end }}
{{- end }}
{{- end }}

{{- /* A watched namespace for examples and `helm test`: the release's own namespace if it is watched. */}}
{{- define "ddpjob-operator.jobNamespace" -}}
{{- $watched := .Values.watch.namespaces }}
{{- if or (empty $watched) (has .Release.Namespace $watched) }}
{{- .Release.Namespace }}
{{- else }}
{{- first $watched }}
{{- end }}
{{- end }}

{{- /* The DDPJob that NOTES.txt shows and `helm test` runs. Call with a dict: metadata, trainer. */}}
{{- define "ddpjob-operator.exampleJob" -}}
apiVersion: ddpjob.dev/v1beta1
kind: DDPJob
metadata:
  {{- toYaml .metadata | nindent 2 }}
spec:
  nodes: 2
  trainer:
    {{- toYaml .trainer | nindent 4 }}
  resources:
    requests:
      cpu: 250m
      memory: 512Mi
{{- end }}

{{- /* One scraped endpoint of a PodMonitor or ServiceMonitor. Call with the values of the monitor. */}}
{{- define "ddpjob-operator.endpoint" -}}
- port: health
  path: /metrics
  {{- with .interval }}
  interval: {{ . }}
  {{- end }}
  {{- with .scrapeTimeout }}
  scrapeTimeout: {{ . }}
  {{- end }}
  {{- with .relabelings }}
  relabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .metricRelabelings }}
  metricRelabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- /* The served versions of the API, as a list in CEL. */}}
{{- define "ddpjob-operator.apiVersions" -}}
{{- $versions := list }}
{{- range (.Files.Get "files/crd/ddpjob.yaml" | fromYaml).spec.versions }}
{{- if .served }}{{ $versions = append $versions (printf "ddpjob.dev/%s" .name) }}{{ end }}
{{- end }}
{{- toJson $versions }}
{{- end }}
