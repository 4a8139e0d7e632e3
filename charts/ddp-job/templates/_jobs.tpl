{{/* What the engines share: an Indexed Job, alone or inside of a JobSet. */}}

{{/* Lost pods that a run survives: counted over all of them, so one incident that touches every node is many. */}}
{{- define "ddp-job.backoffLimit" -}}
{{- mul .spec.most (max 1 .spec.maxRestarts) | min (int64 .c.largestBackoffLimit) -}}
{{- end -}}

{{- define "ddp-job.indexedJob" -}}
completionMode: Indexed
completions: {{ .nodes }}
parallelism: {{ .nodes }}
# Counted over all pods: one incident that touches every node must not use it up.
backoffLimit: {{ include "ddp-job.backoffLimit" . }}
# Two pods of one node would be one rank twice; and beside a podFailurePolicy nothing else is allowed.
podReplacementPolicy: Failed
# The pods of a complete group exit together, and what has not ended then is deleted with its log: fewer than a group
# would take those of others along, and more could wait for a node that never found a place.
successPolicy: {rules: [{succeededCount: {{ .spec.least }}}]}
# Evicted or preempted: not counted. 1 to 127: the job has failed. 128 and above: the pod is made anew.
podFailurePolicy:
  rules:
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget, status: "True"}]
    - action: FailJob
      onExitCodes:
        containerName: {{ .engine.container }}
        operator: In
        values: {{ untilStep (int .c.permanentExitCodes.first) (int .c.permanentExitCodes.beyond) 1 | toJson }}
{{- if and .engine.limitsJob .spec.deadline }}
activeDeadlineSeconds: {{ .spec.deadline }}
{{- end }}
{{- end -}}

{{/* A set of one Job, whose pods are the nodes. */}}
{{- define "ddp-job.jobSet" -}}
{{- if hasKey .spec "ttl" -}}
ttlSecondsAfterFinished: {{ .spec.ttl }}
{{ end -}}
# The launcher and the Job count restarts; a set that begins anew would give them a second budget.
failurePolicy: {maxRestarts: 0}
replicatedJobs:
  - name: node
    replicas: 1
    template:
      {{- with .engine.jobLabels }}
      metadata: {labels: {{ toJson . }}}
      {{- end }}
      spec:
        {{- include "ddp-job.indexedJob" . | nindent 8 }}
        template:
          {{- include "ddp-job.pod" . | nindent 10 }}
{{- end -}}

{{/* The specification of the root object; $job.suspended and $job.nodes may differ from what the values say. */}}
{{- define "ddp-job.rootSpec" -}}
{{- include (printf "ddp-job.%s" .engine.name) . -}}
{{- end -}}

{{- define "ddp-job.job" -}}
suspend: {{ .suspended }}
{{- if hasKey .spec "ttl" }}
ttlSecondsAfterFinished: {{ .spec.ttl }}
{{- end }}
{{ include "ddp-job.indexedJob" . }}
template:
  {{- include "ddp-job.pod" . | nindent 2 }}
{{- end -}}

{{- define "ddp-job.jobset" -}}
suspend: {{ .suspended }}
{{ include "ddp-job.jobSet" . }}
{{- end -}}

{{- define "ddp-job.trainjob" -}}
suspend: {{ .suspended }}
runtimeRef:
  apiGroup: trainer.kubeflow.org
  kind: TrainingRuntime
  name: {{ toJson .spec.name }}
{{- with .spec.deadline }}
activeDeadlineSeconds: {{ . }}
{{- end }}
# Without this part the Trainer passes on nothing at all.
trainer:
  numNodes: {{ .nodes }}
  numProcPerNode: {{ .spec.nproc }}
{{- end -}}

{{- define "ddp-job.pytorchjob" -}}
nprocPerNode: {{ .spec.nproc | toString | toJson }}
elasticPolicy:
  minReplicas: {{ .spec.least }}
  maxReplicas: {{ .spec.most }}
  # The operator knows torch's own backends only; the launcher is told on its command line, which wins.
  rdzvBackend: c10d
  rdzvHost: {{ printf "%s-store" .spec.name }}
  rdzvPort: {{ .c.port.RENDEZVOUS }}
  rdzvId: {{ toJson .runId }}
  maxRestarts: {{ .spec.maxRestarts }}
runPolicy:
  cleanPodPolicy: Running
  suspend: {{ .suspended }}
  # Counted over all pods: one incident that touches every node must not use it up.
  backoffLimit: {{ include "ddp-job.backoffLimit" . }}
  {{- with .spec.deadline }}
  activeDeadlineSeconds: {{ . }}
  {{- end }}
  {{- if hasKey .spec "ttl" }}
  ttlSecondsAfterFinished: {{ .spec.ttl }}
  {{- end }}
  {{- if ne .spec.gang "none" }}
  schedulingPolicy:
    # Left to itself the operator waits for every replica of an elastic job.
    minAvailable: {{ .spec.least }}
    {{- with .gangQueue }}
    queue: {{ toJson . }}
    {{- end }}
    {{- with .spec.priority }}
    priorityClass: {{ toJson . }}
    {{- end }}
  {{- end }}
pytorchReplicaSpecs:
  # No Master: it would be one more node, with an init container that Pod Security "restricted" refuses.
  Worker:
    replicas: {{ .nodes }}
    # 128 and above: the pod is made anew; 1 to 127: the job has failed. The launcher's exit codes are made for this.
    restartPolicy: ExitCode
    template:
      {{- include "ddp-job.pod" . | nindent 6 }}
{{- end -}}

{{/* All that the TrainJob of the same name is. Helm makes Lists before TrainJobs, which are refused without it. */}}
{{- define "ddp-job.runtime" -}}
{{- $framework := dict "trainer.kubeflow.org/framework" "torch" }}
---
apiVersion: v1
kind: List
items:
  - apiVersion: trainer.kubeflow.org/v1alpha1
    kind: TrainingRuntime
    metadata:
      name: {{ toJson .spec.name }}
      {{- with .spec.namespace }}
      namespace: {{ toJson . }}
      {{- end }}
      labels: {{ include "ddp-job.labels" (dict "job" .) | fromJson | merge $framework | toJson }}
    spec:
      {{- include "ddp-job.runtimeSpec" . | nindent 6 }}
{{- end -}}

{{- define "ddp-job.runtimeSpec" -}}
mlPolicy:
  numNodes: {{ .nodes }}
  # The PET_ variables that this makes are the Trainer's; the launcher is told on its command line, which wins.
  torch: {}
template:
  {{- if and (not .isKueues) (or .together.labels .together.annotations) }}
  metadata: {{ dict "labels" .together.labels "annotations" .together.annotations | toJson }}
  {{- end }}
  spec:
    {{- include "ddp-job.jobSet" . | nindent 4 }}
{{- end -}}
