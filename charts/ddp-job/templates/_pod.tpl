{{/* The pod template of one node. Every engine uses it, so a run means the same on each of them. */}}
{{- define "ddp-job.pod" -}}
{{- $run := .Values._run -}}
{{- $isArchive := eq $run.code "archive" -}}
{{- $claims := concat (ternary (list "rdma") list (not (empty .Values.deviceRequests))) (ternary (list "channel") list (not (empty .Values.computeDomain))) -}}
metadata:
  labels:
    {{- include "ddp-job.podLabels" (dict "root" . "role" "worker" "more" .Values.podLabels) | nindent 4 }}
  annotations:
    {{- $stays := dict "cluster-autoscaler.kubernetes.io/safe-to-evict" "false" "karpenter.sh/do-not-disrupt" "true" }}
    {{- list .Values.podAnnotations .Values.annotations $stays | include "ddp-job.entries" | nindent 4 }}
spec:
  {{- include "ddp-job.given" (dict "restartPolicy" $run.kind.restartPolicy "schedulerName" .Values.schedulerName "serviceAccountName" .Values.serviceAccountName "imagePullSecrets" .Values.imagePullSecrets "priorityClassName" .Values.priorityClassName "nodeSelector" .Values.nodeSelector) | nindent 2 }}
  {{- include "ddp-job.given" (dict "affinity" (include "ddp-job.affinity" . | fromYaml) "topologySpreadConstraints" (include "ddp-job.spread" . | fromYamlArray)) | nindent 2 }}
  {{- if $run.kind.subdomain }}
  subdomain: {{ $run.name | quote }}
  {{- end }}
  {{- if hasPrefix "scheduling.k8s.io/" (default "" .Values.podGroup.apiVersion) }}
  schedulingGroup: {podGroupName: {{ $run.name | quote }}}
  {{- end }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ int64 .Values.terminationGracePeriodSeconds }}
  tolerations:
    # A node that is gone is given up after this time; with the default of 300 s every other GPU would wait for it.
    - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
    - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
    {{- if .Values.gpus }}
    - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
    {{- end }}
    {{- with .Values.tolerations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  securityContext: {{ include "ddp-job.podSecurityContext" . }}
  {{- with $claims }}
  resourceClaims:
    {{- range . }}
    - {name: {{ . }}, resourceClaimTemplateName: {{ $run.name }}-{{ . }}}
    {{- end }}
  {{- end }}
  {{- $copies := and .Values.runtimeImage (ne .Values.runtimeMount "image") }}
  {{- if or $copies $isArchive .Values.initContainers }}
  initContainers:
  {{- end }}
  {{- if $copies }}
    {{- include "ddp-job.runtimeCopy" . | nindent 4 }}
      resources:
        requests: &copy {cpu: {{ include "ddp-job.text" .Values.cpu | quote }}, memory: {{ .Values.memory | quote }}}
        limits: *copy
  {{- end }}
  {{- if $isArchive }}
    # A ConfigMap holds files, not directories, and is read-only: scripts write beside themselves.
    - name: unpack-code
      image: {{ $run.image | quote }}
      imagePullPolicy: {{ .Values.imagePullPolicy }}
      command:
        - {{ include "ddp-job.python" . }}
        - -W
        - ignore
        - -c
        - "import glob, io, sys, tarfile; parts = sorted(glob.glob(sys.argv[1] + '/*')); data = io.BytesIO(b''.join(open(part, 'rb').read() for part in parts)); tarfile.open(fileobj=data).extractall(sys.argv[2])"
        - /var/run/ddp-code-archive
        - /var/run/ddp-code
      resources:
        requests: &unpack {cpu: {{ include "ddp-job.text" .Values.cpu | quote }}, memory: {{ .Values.memory | quote }}}
        limits: *unpack
      securityContext: {{ include "ddp-job.containerSecurityContext" . }}
      terminationMessagePolicy: FallbackToLogsOnError
      volumeMounts:
        - {name: code-archive, mountPath: /var/run/ddp-code-archive, readOnly: true}
        - {name: code, mountPath: /var/run/ddp-code}
  {{- end }}
  {{- with .Values.initContainers }}
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ $run.kind.container }}
      image: {{ $run.image | quote }}
      imagePullPolicy: {{ .Values.imagePullPolicy }}
      command: {{ .Values.launcher | default (include "ddp-job.command" (dict "root" . "name" "launch") | fromJsonArray) | include "ddp-job.quoted" }}
      args:
        - --nnodes={{ $run.minNodes }}:{{ $run.maxNodes }}
        - --nproc-per-node={{ $run.nproc }}
        - --rdzv-backend=ddp
        - --rdzv-endpoint={{ $run.name }}-store:29400
        - --rdzv-id={{ $run.runId }}
        - --max-restarts={{ .Values.maxRestarts }}
        - --tee=3
        - "--log-line-prefix-template=[rank${rank}] "
        {{- range include "ddp-job.program" . | fromJsonArray }}
        - {{ include "ddp-job.literal" . | include "ddp-job.quoted" }}
        {{- end }}
      {{- if or $isArchive .Values.codeClaim }}
      workingDir: /var/run/ddp-code
      {{- else if .Values.script }}
      # A script that is sent alone expects nothing beside it, and may write here on every image.
      workingDir: /tmp
      {{- end }}
      env:
        {{- include "ddp-job.identityEnv" . | nindent 8 }}
        - {name: DDP_RUN_DIR, value: /var/run/ddp}
        - {name: DDP_CHECKPOINT_DIR, value: /checkpoints}
        - {name: DDP_CHECKPOINT_SCOPE, value: {{ ternary "pod" "job" (empty .Values.checkpointClaim) }}}
        - {name: DDP_METRICS_PORT, value: "9464"}
        - {name: DDP_TERMINATION_LOG, value: /dev/termination-log}
        - {name: DDP_GRACE_SECONDS, value: {{ int64 .Values.terminationGracePeriodSeconds | toString | quote }}}
        # torch's own default kills or splits a job when it scales up or a pod is replaced.
        - {name: TORCH_DISABLE_SHARE_RDZV_TCP_STORE, value: "1"}
        {{- $users := include "ddp-job.usersEnv" . | fromJson }}
        # A launcher that crashes starts again in its pod.
        - {{ get $users "DDP_RESTART_IN_PLACE" | default (dict "name" "DDP_RESTART_IN_PLACE" "value" "1") | include "ddp-job.quoted" }}
        {{- with .Values.parallel }}
        - {name: DDP_PARALLEL, value: {{ quote . }}}
        {{- end }}
        # A name stands once: server-side apply refuses a second.
        - {{ get $users "HOME" | default (dict "name" "HOME" "value" "/tmp") | include "ddp-job.quoted" }}
        {{- $name := .Values.env.LOGNAME | default .Values.env.USER | default "ddp" }}
        - {{ get $users "USER" | default (dict "name" "USER" "value" $name) | include "ddp-job.quoted" }}
        - {{ get $users "LOGNAME" | default (dict "name" "LOGNAME" "value" $name) | include "ddp-job.quoted" }}
        {{- range concat (keys .Values.env | sortAlpha) (keys .Values.secretEnv | sortAlpha) }}
        {{- if not (has . (list "HOME" "USER" "LOGNAME" "DDP_RESTART_IN_PLACE")) }}
        - {{ get $users . | include "ddp-job.quoted" }}
        {{- end }}
        {{- end }}
      {{- include "ddp-job.given" (dict "envFrom" .Values.envFrom) | nindent 6 }}
      ports:
        - {name: pytorchjob-port, containerPort: 23456}
        - {name: metrics, containerPort: 9464}
      # Equal, so that memory is never taken away and cores may be exclusive. The slowest rank sets the pace of all.
      resources:
        requests: &resources
          cpu: {{ include "ddp-job.text" .Values.cpu | quote }}
          memory: {{ .Values.memory | quote }}
          {{- if .Values.gpus }}
          {{ .Values.gpuResource }}: {{ .Values.gpus | toString | quote }}
          {{- end }}
          {{- range $name, $amount := .Values.resources }}
          {{ $name }}: {{ include "ddp-job.text" $amount | quote }}
          {{- end }}
        limits: *resources
        {{- with $claims }}
        claims:
          {{- range . }}
          - name: {{ . }}
          {{- end }}
        {{- end }}
      securityContext: {{ include "ddp-job.containerSecurityContext" . }}
      terminationMessagePath: /dev/termination-log
      terminationMessagePolicy: FallbackToLogsOnError
      volumeMounts:
        - {name: run, mountPath: /var/run/ddp}
        - {name: boards, mountPath: /var/run/ddp/metrics}
        - {name: checkpoints, mountPath: /checkpoints}
        - {name: shm, mountPath: /dev/shm}
        - {name: scratch, mountPath: /tmp}
        - {name: run-secret, mountPath: /var/run/ddp-secret, readOnly: true}
        {{- if $run.code }}
        - {name: code, mountPath: /var/run/ddp-code, readOnly: {{ not $isArchive }}}
        {{- else if .Values.codeClaim }}
        - {name: code, mountPath: /var/run/ddp-code, subPath: {{ splitList ":" .Values.codeClaim | last | clean | trimAll "/" | quote }}, readOnly: true}
        {{- end }}
        {{- if .Values.runtimeImage }}
        - {name: runtime, mountPath: /var/run/ddp-runtime, readOnly: true}
        {{- end }}
        {{- with .Values.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: run
      emptyDir: {sizeLimit: 1Gi}
    - name: boards
      emptyDir: {medium: Memory, sizeLimit: 16Mi}
    - name: checkpoints
      {{- if .Values.checkpointClaim }}
      persistentVolumeClaim: {claimName: {{ .Values.checkpointClaim | quote }}}
      {{- else }}
      emptyDir: {}
      {{- end }}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ .Values.shm | quote }}}
    - name: scratch
      emptyDir: {}
    - name: run-secret
      secret: {secretName: {{ $run.secret | quote }}, defaultMode: 256}
    {{- if $isArchive }}
    - name: code
      emptyDir: {}
    - name: code-archive
      projected:
        sources:
          {{- range $run.codeParts }}
          - configMap: {name: {{ . }}}
          {{- end }}
    {{- else if $run.code }}
    - name: code
      configMap: {name: {{ first $run.codeParts }}}
    {{- else if .Values.codeClaim }}
    - name: code
      persistentVolumeClaim: {claimName: {{ splitList ":" .Values.codeClaim | first | quote }}, readOnly: true}
    {{- end }}
    {{- if .Values.runtimeImage }}
    {{- include "ddp-job.runtimeVolume" . | nindent 4 }}
    {{- end }}
    {{- with .Values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* The Python of the image. Images of others often have no `python`. */}}
{{- define "ddp-job.python" -}}
{{- .Values.python | default (ternary "python3" "python" (ne "" .Values.runtimeImage)) | quote -}}
{{- end -}}

{{/* The words that start a command of ddp_trainer in a pod, as JSON. */}}
{{- define "ddp-job.command" -}}
{{- $python := include "ddp-job.python" .root -}}
{{- if .root.Values.runtimeImage -}}
[{{ $python }}, "/var/run/ddp-runtime", {{ quote .name }}]
{{- else if and (eq .name "launch") (not .root.Values.python) -}}
["ddp-launch"]
{{- else -}}
[{{ $python }}, "-m", "ddp_trainer", {{ quote .name }}]
{{- end -}}
{{- end -}}

{{/* The init container that copies the launcher, without its resources. */}}
{{- define "ddp-job.runtimeCopy" -}}
- name: copy-runtime
  image: {{ .Values.runtimeImage | quote }}
  imagePullPolicy: {{ .Values.imagePullPolicy }}
  command: [/copy/ld.so, --library-path, /copy, /copy/cp, --recursive, /__main__.py, /ddp_trainer, /var/run/ddp-runtime]
  securityContext: {{ include "ddp-job.containerSecurityContext" . }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - {name: runtime, mountPath: /var/run/ddp-runtime}
{{- end -}}

{{- define "ddp-job.runtimeVolume" -}}
- name: runtime
  {{- if eq .Values.runtimeMount "image" }}
  image: {reference: {{ .Values.runtimeImage | quote }}, pullPolicy: {{ .Values.imagePullPolicy }}}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end -}}

{{/* What the launcher starts, as JSON. */}}
{{- define "ddp-job.program" -}}
{{- $start := list -}}
{{- if .Values.command -}}
{{- $start = include "ddp-job.texts" .Values.command | fromJsonArray | concat (list "--no-python") -}}
{{- else if .Values.module -}}
{{- $start = list "-m" .Values.module -}}
{{- else -}}
{{- $script := required "Nothing says what to run: set script, module or command." .Values.script -}}
{{- $start = ternary (clean $script) (base $script) (ne "" (print .Values.code .Values.codeClaim)) | printf "/var/run/ddp-code/%s" | list -}}
{{- end -}}
{{- include "ddp-job.texts" .Values.args | fromJsonArray | concat $start | mustToJson -}}
{{- end -}}

{{/* What every pod of the run knows about itself. */}}
{{- define "ddp-job.identityEnv" -}}
- {name: DDP_JOB, value: {{ .Values._run.name | quote }}}
- {name: DDP_RUN_ID, value: {{ .Values._run.runId | quote }}}
- {name: DDP_SECRET_FILE, value: /var/run/ddp-secret/run-secret}
- {name: DDP_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
- {name: DDP_POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: DDP_POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: DDP_NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
{{- end -}}

{{/* The variables of `env` and `secretEnv` by name, as JSON. */}}
{{- define "ddp-job.usersEnv" -}}
{{- $users := dict -}}
{{- range $name, $value := .Values.env -}}
{{- $_ := include "ddp-job.text" $value | include "ddp-job.literal" | dict "name" $name "value" | set $users $name -}}
{{- end -}}
{{- range $name, $entry := .Values.secretEnv -}}
{{- $_ := dict "secretKeyRef" $entry | dict "name" $name "valueFrom" | set $users $name -}}
{{- end -}}
{{- mustToJson $users -}}
{{- end -}}

{{/* `affinity`, and beside it the pods of this run for `topology.pack`. Kubernetes places the first pod without any others. */}}
{{- define "ddp-job.affinity" -}}
{{- $required := list -}}
{{- $preferred := list -}}
{{- range .Values.topology.pack -}}
{{- $term := dict "topologyKey" .topologyKey "labelSelector" (include "ddp-job.ownPods" $ | fromYaml) -}}
{{- if .required -}}
{{- $required = append $required $term -}}
{{- else -}}
{{- $preferred = dict "weight" 100 "podAffinityTerm" $term | append $preferred -}}
{{- end -}}
{{- end -}}
{{- $pods := include "ddp-job.given" (dict "requiredDuringSchedulingIgnoredDuringExecution" $required "preferredDuringSchedulingIgnoredDuringExecution" $preferred) | fromYaml -}}
{{- include "ddp-job.given" (merge (dict "podAffinity" $pods) .Values.affinity) -}}
{{- end -}}

{{- define "ddp-job.spread" -}}
{{- range .Values.topology.spread }}
- maxSkew: 1
  topologyKey: {{ .topologyKey | quote }}
  whenUnsatisfiable: {{ ternary "DoNotSchedule" "ScheduleAnyway" (.required | default false) }}
  labelSelector: { {{- include "ddp-job.ownPods" $ -}} }
{{- end }}
{{- end -}}

{{- define "ddp-job.ownPods" -}}
matchLabels: { {{- include "ddp-job.selector" (dict "root" . "role" "worker") -}} , ddp.dev/run-id: {{ .Values._run.runId | quote }}}
{{- end -}}

{{- define "ddp-job.podSecurityContext" -}}
{runAsNonRoot: true{{ range $name, $id := .Values.podSecurityContext }}{{ if ne (toString $id) "none" }}, {{ $name }}: {{ int64 $id }}{{ end }}{{ end }}, fsGroupChangePolicy: OnRootMismatch, seccompProfile: {type: RuntimeDefault}}
{{- end -}}

{{- define "ddp-job.containerSecurityContext" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end -}}
