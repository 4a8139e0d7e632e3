{{/* What stands beside the root object. */}}

{{/* The code that travels with the job; named by its digest, since it never changes. */}}
{{- define "ddp-job.codeMap" }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "ddp-job.metadata" (dict "job" . "name" (include "ddp-job.codeName" .)) | nindent 2 }}
immutable: true
{{ ternary "binaryData" "data" .code.isArchive }}:
  {{ toJson .code.file }}: {{ toJson .code.text }}
{{- end }}

{{/* The secret of the run: random, and kept by upgrades as long as the run is the same. */}}
{{- define "ddp-job.runSecret" }}
{{- $name := include "ddp-job.secretName" . }}
{{- $value := printf "%s:%x" .runId (int .c.runSecret.bytes | randBytes | b64dec) }}
{{- with lookup "v1" "Secret" .root.Release.Namespace $name }}
{{- $value = get .data $.c.runSecret.key | b64dec }}
{{- end }}
---
apiVersion: v1
kind: Secret
metadata:
  {{- include "ddp-job.metadata" (dict "job" . "name" (toJson $name)) | nindent 2 }}
type: Opaque
immutable: true
stringData: {{ dict .c.runSecret.key $value | toJson }}
{{- end }}

{{- define "ddp-job.secretName" -}}
{{- .root.Values.runSecret | default (printf "%s-run-%s" .spec.name (sha256sum .runId | trunc (int .c.runSecret.hashLength))) -}}
{{- end -}}

{{- define "ddp-job.secretVolume" -}}
{{- dict "name" .c.runSecret.key "secret" (dict "secretName" (include "ddp-job.secretName" .) "defaultMode" (int .c.runSecret.mode)) | toJson -}}
{{- end -}}

{{/* NVLink between machines: NVIDIA's driver makes the claim template that is named here. */}}
{{- define "ddp-job.computeDomain" }}
---
apiVersion: resource.nvidia.com/v1beta1
kind: ComputeDomain
metadata:
  {{- include "ddp-job.metadata" (dict "job" . "name" (toJson .spec.name)) | nindent 2 }}
spec:
  numNodes: {{ values .added.computeDomain | first | atoi }}
  channel:
    resourceClaimTemplate: {name: {{ printf "%s-%s" .spec.name .c.channel }}}
{{- end }}

{{/* The network devices that every pod claims for itself. */}}
{{- define "ddp-job.claimTemplate" }}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  {{- include "ddp-job.metadata" (dict "job" . "name" (printf "%s-rdma" .spec.name | toJson)) | nindent 2 }}
spec:
  spec:
    devices:
      requests:
      {{- range values .added.claim }}
      {{- $words := splitn "=" 2 . }}
      {{- $amount := dict "allocationMode" "All" }}
      {{- if ne $words._1 "all" }}{{ $amount = dict "allocationMode" "ExactCount" "count" (atoi $words._1) }}{{ end }}
        - {name: devices, exactly: {{ dict "deviceClassName" $words._0 | merge $amount | toJson }}}
      {{- end }}
{{- end }}

{{/* Gives each node the name NAME-INDEX.NAME, as operators do. */}}
{{- define "ddp-job.nodesService" }}
---
apiVersion: v1
kind: Service
metadata:
  {{- include "ddp-job.metadata" (dict "job" . "name" (toJson .spec.name) "role" .c.role.WORKER) | nindent 2 }}
spec:
  clusterIP: None
  # Ranks look for one another before any of them could be called ready.
  publishNotReadyAddresses: true
  selector: {{ include "ddp-job.selector" (dict "job" . "role" .c.role.WORKER) }}
  ports:
    - name: {{ .c.portName.METRICS }}
      port: {{ .c.port.METRICS }}
      targetPort: {{ .c.portName.METRICS }}
{{- end }}

{{/* A name for the store that outlives its pod. It never carries the operator's own labels: the operator counts Services
     by them and would take this one for a replica's. */}}
{{- define "ddp-job.storeService" }}
---
apiVersion: v1
kind: Service
metadata:
  {{- include "ddp-job.metadata" (dict "job" . "name" (printf "%s-store" .spec.name) "role" .c.role.STORE) | nindent 2 }}
spec:
  clusterIP: None
  # Nodes look for the store from their first second; a readiness check would only make them wait.
  publishNotReadyAddresses: true
  selector: {{ include "ddp-job.selector" (dict "job" . "role" .c.role.STORE) }}
  ports:
    - name: {{ .c.portName.RENDEZVOUS }}
      port: {{ .c.port.RENDEZVOUS }}
      targetPort: {{ .c.portName.RENDEZVOUS }}
{{- end }}

{{/* Who may talk to the pods of this job. torch's collectives and stores know no passwords: who reaches their ports takes
     part, and can make ranks run code. The ports are chosen at run time, so the rule is about pods, not ports. */}}
{{- define "ddp-job.networkPolicy" }}
{{- $mine := include "ddp-job.selector" (dict "job" .) }}
{{- $isClosed := eq .spec.egress "closed" }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "ddp-job.metadata" (dict "job" . "name" (toJson .spec.name)) | nindent 2 }}
spec:
  podSelector: {matchLabels: {{ $mine }}}
  policyTypes: {{ ternary (list "Ingress" "Egress") (list "Ingress") $isClosed | toJson }}
  ingress:
    - from:
        - podSelector: {matchLabels: {{ $mine }}}
    # Prometheus; and the API server, through which `top` and `status` read. It comes from outside of the pods' network.
    - ports:
        - {port: {{ .c.port.METRICS }}, protocol: TCP}
      {{- with include "ddp-job.metricsPeers" . | fromJsonArray }}
      from:
      {{- range . }}
        - {{ toJson . }}
      {{- end }}
      {{- end }}
  {{- if $isClosed }}
  egress:
    - to:
        - podSelector: {matchLabels: {{ $mine }}}
    # DNS servers of the cluster; an attacker who listens at port 53 elsewhere is not reached.
    - to:
      {{- range .spec.dns | default (include "ddp-job.defaultDns" . | fromJsonArray) }}
      {{- if .addresses }}
        - ipBlock: {cidr: {{ .addresses }}}
      {{- else }}
        - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ toJson .namespace }}}}
          podSelector: {matchLabels: { {{- toJson .label }}: {{ toJson .value }}}}
      {{- end }}
      {{- end }}
      ports:
      {{- range $port := .c.dns.ports }}
        - {port: {{ $port }}, protocol: UDP}
        - {port: {{ $port }}, protocol: TCP}
      {{- end }}
  {{- end }}
{{- end }}

{{- define "ddp-job.defaultDns" -}}
{{- $servers := list -}}
{{- range .c.dns.servers -}}
{{- $servers = dict "shapes" $.shapes "key" "dns" "text" . | include "ddp-job.dnsServer" | fromJson | append $servers -}}
{{- end -}}
{{- toJson $servers -}}
{{- end -}}

{{/* Who reads metrics; empty where everybody may. */}}
{{- define "ddp-job.metricsPeers" -}}
{{- $peers := list -}}
{{- $isOpen := false -}}
{{- range .spec.metricsFrom -}}
{{- if .addresses -}}
{{- $peers = append $peers (dict "ipBlock" (dict "cidr" .addresses)) -}}
{{- else if .label -}}
{{- $peers = append $peers (dict "namespaceSelector" (dict "matchLabels" (dict .label .value))) -}}
{{- else -}}
{{- $isOpen = true -}}
{{- end -}}
{{- end -}}
{{- range $address := .root.Values.apiServers -}}
{{- $block := include "ddp-job.block" $address -}}
{{- if not $block -}}
{{- fail (printf "apiServers: '%s' is no address. Write it as 10.0.0.7; 'kubectl get endpointslice kubernetes -n default' shows them." $address) -}}
{{- end -}}
{{- $peers = append $peers (dict "ipBlock" (dict "cidr" $block)) -}}
{{- end -}}
{{- ternary list $peers $isOpen | toJson -}}
{{- end -}}

{{/* Tells Prometheus to scrape every node of this job. Not a ServiceMonitor: Services hide pods that are not ready. */}}
{{- define "ddp-job.podMonitor" }}
{{- $isServed := or (not (include "ddp-job.knowsCluster" .)) (.root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor") }}
{{- /* Beside the platform's, which finds every run of its namespace, a second one would count every series twice. */}}
{{- $isWanted := eq .root.Values.podMonitor "always" }}
{{- if and $isServed (eq .root.Values.podMonitor "auto") }}
{{- $isWanted = not (lookup "monitoring.coreos.com/v1" "PodMonitor" .root.Release.Namespace .c.platformMonitor) }}
{{- end }}
{{- if $isWanted }}
---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  {{- include "ddp-job.metadata" (dict "job" . "name" (toJson .spec.name)) | nindent 2 }}
spec:
  selector: {matchLabels: {{ include "ddp-job.selector" (dict "job" . "role" .c.role.WORKER) }}}
  podMetricsEndpoints:
    - port: {{ .c.portName.METRICS }}
      interval: 15s
      scrapeTimeout: 10s
      honorLabels: false
      relabelings:
        - sourceLabels: [__meta_kubernetes_pod_node_name]
          targetLabel: node
{{- end }}
{{- end }}
