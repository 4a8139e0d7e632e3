{{/* Where the pods of the nodes may run: labels of machines, and how they lie to each other. */}}

{{- define "ddp-job.nodeSelector" -}}
{{- $labels := merge (dict) .spec.nodeSelector -}}
{{- with .spec.gpuType -}}{{- $_ := set $labels $.c.gpuProduct . -}}{{- end -}}
{{- toJson $labels -}}
{{- end -}}

{{/* Packing: a pod goes where another of the same job is. The first one finds none, and Kubernetes lets it pass. */}}
{{- define "ddp-job.affinity" -}}
{{- $mine := include "ddp-job.mine" . | fromJson -}}
{{- $required := list -}}
{{- $preferred := list -}}
{{- range $wish := .spec.topology -}}
{{- if eq $wish.placement "pack" -}}
{{- $term := dict "topologyKey" $wish.key "labelSelector" (dict "matchLabels" $mine) -}}
{{- if $wish.required -}}
{{- $required = append $required $term -}}
{{- else -}}
{{- $preferred = append $preferred (dict "weight" 100 "podAffinityTerm" $term) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $affinity := dict -}}
{{- if $required -}}{{- $_ := set $affinity "requiredDuringSchedulingIgnoredDuringExecution" $required -}}{{- end -}}
{{- if $preferred -}}{{- $_ := set $affinity "preferredDuringSchedulingIgnoredDuringExecution" $preferred -}}{{- end -}}
{{- $found := ternary (dict "podAffinity" $affinity) dict (gt (len $affinity) 0) -}}
{{- $labels := list -}}
{{- range $label, $_ := .added.nodeLabel -}}{{- $labels = append $labels (dict "key" $label "operator" "Exists") -}}{{- end -}}
{{- if $labels -}}
{{- $terms := dict "nodeSelectorTerms" (list (dict "matchExpressions" $labels)) -}}
{{- $_ := set $found "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" $terms) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- define "ddp-job.spread" -}}
{{- $mine := include "ddp-job.mine" . | fromJson -}}
{{- $found := list -}}
{{- range $wish := .spec.topology -}}
{{- if eq $wish.placement "spread" -}}
{{- $found = append $found (dict "maxSkew" 1 "topologyKey" $wish.key "whenUnsatisfiable" (ternary "DoNotSchedule" "ScheduleAnyway" $wish.required) "labelSelector" (dict "matchLabels" $mine)) -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Labels that the worker pods of this run have in common. */}}
{{- define "ddp-job.mine" -}}
{{- $run := dict .c.label.RUN_ID .runId -}}
{{- dict "job" . "role" .c.role.WORKER | include "ddp-job.selector" | fromJson | merge $run | toJson -}}
{{- end -}}

{{/* Taints that do not matter: how long a pod stays on a machine that no longer answers, and those of the job. */}}
{{- define "ddp-job.tolerations" -}}
{{- $found := list -}}
{{- range $condition := list "not-ready" "unreachable" -}}
{{- $found = append $found (dict "key" (printf "node.kubernetes.io/%s" $condition) "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" $.seconds) -}}
{{- end -}}
{{- if and .onGpus (gt .job.spec.gpus 0) -}}
{{- $found = append $found (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule") -}}
{{- end -}}
{{- range .job.spec.tolerations -}}
{{- $toleration := dict "key" .key "operator" (ternary "Equal" "Exists" (ne .value "")) -}}
{{- with .value -}}{{- $_ := set $toleration "value" . -}}{{- end -}}
{{- with .effect -}}{{- $_ := set $toleration "effect" . -}}{{- end -}}
{{- $found = append $found $toleration -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}
