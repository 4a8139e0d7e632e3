{{/* The store: where the nodes of a job find one another. A Job makes its pod, because a bare pod stays with a dead
     machine; it is small, away from the workers, and ends when the run has ended. */}}
{{- define "ddp-job.storeJob" }}
---
apiVersion: batch/v1
kind: Job
metadata:
  {{- include "ddp-job.metadata" (dict "job" . "name" (printf "%s-store" .spec.name) "role" .c.role.STORE) | nindent 2 }}
spec:
  {{- include "ddp-job.storeSpec" . | nindent 2 }}
{{- end }}

{{- define "ddp-job.storeSpec" -}}
{{- $labels := dict "sidecar.istio.io/inject" "false" -}}
{{- $places := dict -}}
{{- range $label, $value := .spec.nodeSelector -}}
{{- range $.c.placeLabels -}}{{- if hasPrefix . $label -}}{{- $_ := set $places $label $value -}}{{- end -}}{{- end -}}
{{- end -}}
parallelism: 1
completions: 1
# As long as the job lives it needs a store, so no number of lost ones is too many.
backoffLimit: 2147483647
# The next one need not wait until a pod on a lost machine is known to be gone.
podReplacementPolicy: TerminatingOrFailed
template:
  metadata:
    labels: {{ dict "job" . "role" .c.role.STORE | include "ddp-job.podLabels" | fromJson | merge $labels | toJson }}
    annotations:
      cluster-autoscaler.kubernetes.io/safe-to-evict: "true"
  spec:
    automountServiceAccountToken: false
    enableServiceLinks: false
    restartPolicy: OnFailure
    terminationGracePeriodSeconds: 5
    {{- with .spec.priority }}
    priorityClassName: {{ toJson . }}
    {{- end }}
    {{- with $places }}
    nodeSelector: {{ toJson . }}
    {{- end }}
    # Training goes on without a store, but nothing re-forms: it moves at once, where a worker waits.
    tolerations: {{ include "ddp-job.tolerations" (dict "job" . "seconds" 1 "onGpus" false) }}
    # Nothing ever makes it "ready", and nobody asks whether it is: its Service shows pods that are not. Kubernetes
    # makes a lost pod of a Job anew 10 s after it was last ready, and one that never was at once.
    readinessGates: [{conditionType: {{ .c.neverReady }}}]
    affinity:
      {{- if gt .spec.gpus 0 }}
      nodeAffinity:
        # A place among GPUs is better left to those that need one.
        preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 50
            preference: {matchExpressions: [{key: nvidia.com/gpu.present, operator: DoesNotExist}]}
      {{- end }}
      podAntiAffinity:
        # A machine that fails should not take a worker and the store at once.
        preferredDuringSchedulingIgnoredDuringExecution:
          - weight: 100
            podAffinityTerm:
              topologyKey: kubernetes.io/hostname
              labelSelector: {matchLabels: {{ include "ddp-job.selector" (dict "job" . "role" .c.role.WORKER) }}}
    securityContext: {{ toJson .c.podSecurity }}
    containers:
      - name: store
        image: {{ toJson .spec.image }}
        imagePullPolicy: IfNotPresent
        command: [python, -m, ddp_trainer, store]
        args: ["--port", {{ .c.port.RENDEZVOUS | toString | toJson }}]
        env:
        {{- range append (include "ddp-job.ownVariables" . | fromJsonArray) (dict "name" "PYTHONUNBUFFERED" "value" "1") }}
          - {{ toJson . }}
        {{- end }}
        ports:
          - {name: {{ .c.portName.RENDEZVOUS }}, containerPort: {{ .c.port.RENDEZVOUS }}}
        resources:
          requests: {cpu: 50m, memory: 128Mi}
          # More cores than it asks for: the time it takes to start is time in which nothing re-forms.
          limits: {cpu: "1", memory: 128Mi}
        securityContext: {{ toJson .c.containerSecurity }}
        terminationMessagePolicy: FallbackToLogsOnError
        volumeMounts:
          - {name: {{ .c.runSecret.key }}, mountPath: {{ .c.path.SECRET }}, readOnly: true}
    volumes:
      - {{ include "ddp-job.secretVolume" . }}
{{- end -}}
