{{/* The pod of one node: every engine uses this template, so a run means the same on each of them. */}}
{{- define "ddp-job.pod" -}}
{{- $isArchive := and .code .code.isArchive -}}
{{- $labels := dict "sidecar.istio.io/inject" "false" -}}
{{- $annotations := dict "cluster-autoscaler.kubernetes.io/safe-to-evict" "false" "karpenter.sh/do-not-disrupt" "true" -}}
metadata:
  # A proxy in front of the collectives' ports breaks them.
  labels: {{ dict "job" . "role" .c.role.WORKER | include "ddp-job.podLabels" | fromJson | merge $labels .together.podLabels | toJson }}
  annotations: {{ merge $annotations .together.podAnnotations .added.annotation (include "ddp-job.networks" . | fromJson) | toJson }}
spec:
  {{- with .engine.restartPolicy }}
  restartPolicy: {{ . }}
  {{- end }}
  {{- if .engine.hasSubdomain }}
  subdomain: {{ toJson .spec.name }}
  {{- end }}
  {{- with .spec.scheduler | default (get .c.gangs.schedulers .spec.gang) }}
  schedulerName: {{ toJson . }}
  {{- end }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .spec.grace }}
  {{- with .spec.priority }}
  priorityClassName: {{ toJson . }}
  {{- end }}
  {{- with include "ddp-job.nodeSelector" . | fromJson }}
  nodeSelector: {{ toJson . }}
  {{- end }}
  {{- with include "ddp-job.affinity" . | fromJson }}
  affinity: {{ toJson . }}
  {{- end }}
  {{- with include "ddp-job.spread" . | fromJsonArray }}
  topologySpreadConstraints: {{ toJson . }}
  {{- end }}
  # A node that is gone is given up after 30 s; the default of 300 s is five minutes of every other GPU.
  tolerations: {{ include "ddp-job.tolerations" (dict "job" . "seconds" 30 "onGpus" true) }}
  securityContext: {{ toJson .c.podSecurity }}
  {{- $claims := include "ddp-job.claims" . | fromJsonArray }}
  {{- if $claims }}
  resourceClaims:
  {{- range $claims }}
    - {name: {{ toJson . }}, resourceClaimTemplateName: {{ printf "%s-%s" $.spec.name . | toJson }}}
  {{- end }}
  {{- end }}
  {{- if $isArchive }}
  initContainers:
    # A ConfigMap holds files, not directories, and is read-only: scripts write beside themselves.
    - name: unpack-code
      image: {{ toJson .spec.image }}
      imagePullPolicy: IfNotPresent
      command: {{ toJson .c.unpack }}
      {{- $unpack := dict "cpu" .spec.cpu "memory" .spec.memory | toJson }}
      # No more than what the program asks for afterwards, so it costs nothing.
      resources: {requests: {{ $unpack }}, limits: {{ $unpack }}}
      securityContext: {{ toJson .c.containerSecurity }}
      terminationMessagePolicy: FallbackToLogsOnError
      volumeMounts:
        - {name: code-archive, mountPath: {{ .c.path.CODE_ARCHIVE }}, readOnly: true}
        - {name: code, mountPath: {{ .c.path.CODE }}}
  {{- end }}
  containers:
    - name: {{ .engine.container }}
      image: {{ toJson .spec.image }}
      imagePullPolicy: IfNotPresent
      command: {{ include "ddp-job.command" . }}
      args: {{ include "ddp-job.arguments" . }}
      {{- if $isArchive }}
      workingDir: {{ .c.path.CODE }}
      {{- end }}
      env:
      {{- range include "ddp-job.workerVariables" . | fromJsonArray }}
        - {{ toJson . }}
      {{- end }}
      {{- with .spec.envFrom }}
      envFrom:
      {{- range . }}
        - {{ dict (ternary "secretRef" "configMapRef" (eq .kind "secret")) (dict "name" .name) | toJson }}
      {{- end }}
      {{- end }}
      ports:
        - {name: {{ .c.portName.OPERATOR }}, containerPort: {{ .c.port.OPERATOR }}}
        - {name: {{ .c.portName.METRICS }}, containerPort: {{ .c.port.METRICS }}}
      # Equal, so that memory is never taken away and cores may be exclusive. The slowest rank sets the pace of all: what
      # one pod could borrow from an idle neighbour would make no step shorter.
      {{- $resources := include "ddp-job.resources" . }}
      resources:
        requests: {{ $resources }}
        limits: {{ $resources }}
        {{- if $claims }}
        claims:
        {{- range $claims }}
          - {name: {{ toJson . }}}
        {{- end }}
        {{- end }}
      securityContext: {{ toJson .c.containerSecurity }}
      terminationMessagePath: {{ .c.path.TERMINATION_LOG }}
      terminationMessagePolicy: FallbackToLogsOnError
      volumeMounts:
        - {name: run, mountPath: {{ .c.path.RUN_DIR }}}
        - {name: boards, mountPath: {{ .c.path.METRICS_DIR }}}
        - {name: checkpoints, mountPath: {{ .c.path.CHECKPOINT_DIR }}}
        - {name: shm, mountPath: {{ .c.path.SHARED_MEMORY }}}
        - {name: scratch, mountPath: {{ .c.path.SCRATCH }}}
        - {name: {{ .c.runSecret.key }}, mountPath: {{ .c.path.SECRET }}, readOnly: true}
        {{- if .code }}
        - {name: code, mountPath: {{ .c.path.CODE }}, readOnly: {{ not $isArchive }}}
        {{- end }}
        {{- include "ddp-job.mounts" . | nindent 8 }}
  volumes:
    - name: run
      emptyDir: {sizeLimit: 1Gi}
    - name: boards
      emptyDir: {medium: Memory, sizeLimit: 16Mi}
    - name: checkpoints
      {{- if .spec.checkpointClaim }}
      persistentVolumeClaim: {claimName: {{ toJson .spec.checkpointClaim }}}
      {{- else }}
      emptyDir: {}
      {{- end }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ toJson .spec.shm }}}
    - name: scratch
      emptyDir: {}
    - {{ include "ddp-job.secretVolume" . }}
    {{- if .code }}
    - name: {{ ternary "code-archive" "code" $isArchive }}
      configMap: {name: {{ include "ddp-job.codeName" . }}}
    {{- end }}
    {{- if $isArchive }}
    - name: code
      emptyDir: {}
    {{- end }}
    {{- include "ddp-job.volumes" . | nindent 4 }}
{{- end -}}

{{- define "ddp-job.networks" -}}
{{- ternary (dict .c.networksAnnotation (join "," .spec.networks)) dict (gt (len .spec.networks) 0) | toJson -}}
{{- end -}}

{{- define "ddp-job.resources" -}}
{{- $spec := .spec -}}
{{- $resources := dict "cpu" $spec.cpu "memory" $spec.memory -}}
{{- if gt $spec.gpus 0 -}}
{{- $_ := set $resources (ternary (printf "%s%s" .c.mig (default "" $spec.mig)) .c.gpu (hasKey $spec "mig")) (toString $spec.gpus) -}}
{{- end -}}
{{- with $spec.rdma -}}{{- $_ := set $resources .resource .count -}}{{- end -}}
{{- range $name, $amount := .added.resource -}}{{- $_ := set $resources $name $amount -}}{{- end -}}
{{- toJson $resources -}}
{{- end -}}

{{/* Names of the claims of devices. */}}
{{- define "ddp-job.claims" -}}
{{- concat (keys .added.claim | sortAlpha) (ternary (list .c.channel) list (gt (len .added.computeDomain) 0)) | toJson -}}
{{- end -}}

{{- define "ddp-job.mounts" -}}
{{- range $number, $mount := .spec.mounts }}
{{- $manner := ternary (dict "readOnly" true) dict (or $mount.readOnly (eq $mount.source "configmap")) }}
- {{ dict "name" (printf "mount-%d" $number) "mountPath" $mount.path | merge $manner | toJson }}
{{- end }}
{{- range $number, $files := .spec.secrets }}
- {{ dict "name" (printf "secret-%d" $number) "mountPath" $files.path "readOnly" true | toJson }}
{{- end }}
{{- end -}}

{{- define "ddp-job.volumes" -}}
{{- range $number, $mount := .spec.mounts }}
{{- $source := dict "configMap" (dict "name" $mount.name) }}
{{- if eq $mount.source "pvc" }}
{{- $manner := ternary (dict "readOnly" true) dict $mount.readOnly }}
{{- $source = dict "persistentVolumeClaim" (merge $manner (dict "claimName" $mount.name)) }}
{{- else if eq $mount.source "emptydir" }}
{{- $source = dict "emptyDir" (dict "sizeLimit" $mount.name) }}
{{- end }}
- {{ merge $source (dict "name" (printf "mount-%d" $number)) | toJson }}
{{- end }}
{{- range $number, $files := .spec.secrets }}
- {{ dict "name" (printf "secret-%d" $number) "secret" (dict "secretName" $files.secret "defaultMode" (int $.c.readableByGroup)) | toJson }}
{{- end }}
{{- end -}}

{{- define "ddp-job.codeName" -}}
{{- printf "%s-code-%s" .spec.name (trunc (int .c.codeHashLength) .code.digest) -}}
{{- end -}}
