{{/* An Indexed Job whose pods are the nodes: the engine `job`, and inside of a JobSet. */}}
{{- define "ddp-job.indexedJob" -}}
{{- $run := .Values._run -}}
completionMode: Indexed
completions: {{ $run.nodes }}
parallelism: {{ $run.nodes }}
# Counted over all pods: one incident that touches every node must not use it up.
backoffLimit: {{ int64 .Values.backoffLimit }}
# Two pods of one node would be one rank twice; and beside a podFailurePolicy nothing else is allowed.
podReplacementPolicy: Failed
# The pods of a complete group exit together, and Kubernetes deletes those that have not ended then, with their logs.
successPolicy: {rules: [{succeededCount: {{ $run.minNodes }}}]}
# Evicted or preempted: not counted. 1 to 127: the job has failed. 128 and above: the pod is replaced.
podFailurePolicy:
  rules:
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget, status: "True"}]
    - action: FailJob
      onExitCodes:
        containerName: {{ $run.kind.container }}
        operator: In
        values: {{ untilStep 1 128 1 | toJson }}
{{- if and .Values.activeDeadlineSeconds $run.kind.limitsJob }}
activeDeadlineSeconds: {{ int64 .Values.activeDeadlineSeconds }}
{{- end }}
template:
  {{- include "ddp-job.pod" . | nindent 2 }}
{{- end -}}

{{/* A set of one Job: the engine `jobset`, and inside of a TrainingRuntime. */}}
{{- define "ddp-job.jobSet" -}}
{{- if not (kindIs "invalid" .Values.ttlSecondsAfterFinished) -}}
ttlSecondsAfterFinished: {{ int64 .Values.ttlSecondsAfterFinished }}
{{ end -}}
# The launcher and the Job count restarts; a set that starts over would give them a second budget.
failurePolicy: {maxRestarts: 0}
replicatedJobs:
  - name: node
    replicas: 1
    template:
      {{- with .Values._run.kind.jobLabels }}
      metadata: {labels: {{ toJson . }}}
      {{- end }}
      spec:
        {{- include "ddp-job.indexedJob" . | nindent 8 }}
{{- end -}}
