{{/* Queues and gangs: what each scheduler wants to read on the objects to start the least number of nodes together. */}}

{{- define "ddp-job.together" -}}
{{- $spec := .spec -}}
{{- $together := dict "labels" dict "annotations" dict "podLabels" dict "podAnnotations" dict "group" "" -}}
{{- if .isKueues -}}
{{- $_ := set $together.labels .c.kueueQueue $spec.queue -}}
{{- with $spec.queuePriority -}}{{- $_ := set $together.labels $.c.kueuePriority . -}}{{- end -}}
{{- $isSliced := false -}}
{{- range $spec.topology -}}{{- if eq .placement "replica" -}}{{- $isSliced = true -}}{{- end -}}{{- end -}}
{{- /* Where it keeps replicas together, it would admit any number of pods, and hold back those of no whole replica. */ -}}
{{- if and (eq .engine.name "job") (lt $spec.least $spec.most) (not $isSliced) -}}
{{- $_ := set $together.annotations "kueue.x-k8s.io/job-min-parallelism" (toString $spec.least) -}}
{{- $_ := set $together.annotations "kueue.x-k8s.io/job-completions-equal-parallelism" "true" -}}
{{- end -}}
{{- /* Kueue packs by the topology of its own; it takes one level, so the first that is named. */ -}}
{{- $isPacked := ne $spec.gang "kueue" -}}
{{- range $wish := $spec.topology -}}
{{- if and (not $isPacked) (eq $wish.placement "pack") -}}
{{- $_ := set $together.podAnnotations (printf "kueue.x-k8s.io/podset-%s-topology" (ternary "required" "preferred" $wish.required)) $wish.key -}}
{{- $isPacked = true -}}
{{- end -}}
{{- if eq $wish.placement "replica" -}}
{{- /* Pods of a replica are a slice of the pods, in the order of their indices, which is that of the ranks. */ -}}
{{- $world := mul $spec.most $spec.nproc -}}
{{- $chosen := dict "spans" $.spans "world" $world | include "ddp-job.chosen" | fromJson -}}
{{- $_ := set $together.podAnnotations "kueue.x-k8s.io/podset-slice-required-topology" $wish.key -}}
{{- $_ := set $together.podAnnotations "kueue.x-k8s.io/podset-slice-size" (div $chosen.replica $spec.nproc | toString) -}}
{{- end -}}
{{- end -}}
{{- if and $isSliced (not $isPacked) -}}
{{- /* Kueue before its pull request 10282 never lets go of pods that ask for slices alone. */ -}}
{{- $_ := set $together.podAnnotations "kueue.x-k8s.io/podset-preferred-topology" (get $together.podAnnotations "kueue.x-k8s.io/podset-slice-required-topology") -}}
{{- end -}}
{{- else if eq $spec.gang "volcano" -}}
{{- $_ := set $together.podAnnotations "scheduling.k8s.io/group-name" $spec.name -}}
{{- $_ := set $together "group" "volcano" -}}
{{- else if eq $spec.gang "scheduler-plugins" -}}
{{- $_ := set $together.podLabels "scheduling.x-k8s.io/pod-group" $spec.name -}}
{{- $_ := set $together "group" "scheduler-plugins" -}}
{{- else if eq $spec.gang "kai" -}}
{{- /* KAI groups pods by their owner, and reads the least number there. */ -}}
{{- with $spec.queue -}}
{{- $_ := set $together.labels $.c.kaiQueue . -}}
{{- $_ := set $together.podLabels $.c.kaiQueue . -}}
{{- end -}}
{{- $_ := set $together.annotations "kai.scheduler/batch-min-member" (toString $spec.least) -}}
{{- end -}}
{{- $_ := set . "together" $together -}}
{{- $_ := set . "gangQueue" (ternary "" (default "" $spec.queue) .isKueues) -}}
{{- end -}}

{{/* The nodes as a gang. The store is none of them: it must be there whether they have a place or not. */}}
{{- define "ddp-job.group" -}}
{{- if eq .together.group "volcano" }}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata:
  {{- include "ddp-job.metadata" (dict "job" . "name" (toJson .spec.name)) | nindent 2 }}
spec:
  minMember: {{ .spec.least }}
  {{- with .gangQueue }}
  queue: {{ toJson . }}
  {{- end }}
  {{- with .spec.priority }}
  priorityClassName: {{ toJson . }}
  {{- end }}
{{- else if eq .together.group "scheduler-plugins" }}
---
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata:
  {{- include "ddp-job.metadata" (dict "job" . "name" (toJson .spec.name)) | nindent 2 }}
spec:
  minMember: {{ .spec.least }}
{{- end }}
{{- end -}}
