{{/* Queues that name missing objects, or that Kueue would refuse. */}}
{{- define "ddp-platform.validate.queues" -}}
{{- with .Values.queues -}}
{{- if .enabled -}}
{{- if not (include "ddp-platform.kueue" $) -}}
{{- fail "queues.enabled is true, and the cluster does not serve Kueue's ClusterQueue (kueue.x-k8s.io); install Kueue first, or set queues.enabled to false." -}}
{{- end -}}
{{- $flavors := include "ddp-platform.unique" (dict "key" "queues.flavors" "items" .flavors) | fromJsonArray -}}
{{- $queues := include "ddp-platform.unique" (dict "key" "queues.clusterQueues" "items" .clusterQueues) | fromJsonArray -}}
{{- range $queue := .clusterQueues -}}
{{- $covered := keys (first .flavors).resources | sortAlpha -}}
{{- range .flavors -}}
{{- if not (has .name $flavors) -}}
{{- fail (printf "queues.clusterQueues: '%s' uses the flavor '%s', which is none of queues.flavors (%s); add it there, or choose one of them." $queue.name .name (join ", " $flavors)) -}}
{{- end -}}
{{- if ne (keys .resources | sortAlpha | toJson) (toJson $covered) -}}
{{- fail (printf "queues.clusterQueues: the flavors of '%s' name different resources (%s; %s of '%s'); Kueue needs the same resources in all of them; set the missing ones to 0." $queue.name (join ", " $covered) (keys .resources | sortAlpha | join ", ") .name) -}}
{{- end -}}
{{- range $resource, $amount := .resources -}}
{{- if and (hasKey $amount "lend") (gt (include "ddp-platform.quantity" $amount.lend | float64) (include "ddp-platform.quantity" $amount.nominal | float64)) -}}
{{- fail (printf "queues.clusterQueues: '%s' lends %v of %s, more than it has, %v; lower lend or raise nominal." $queue.name $amount.lend $resource $amount.nominal) -}}
{{- end -}}
{{- if and (or (hasKey $amount "lend") (hasKey $amount "borrow")) (not $queue.cohort) -}}
{{- fail (printf "queues.clusterQueues: '%s' lends or borrows %s without a cohort; set cohort, or leave lend and borrow out." $queue.name $resource) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $namespaces := list -}}
{{- range $.Values.namespaces -}}
{{- $namespaces = append $namespaces .name -}}
{{- end -}}
{{- $places := list -}}
{{- range .localQueues -}}
{{- if not (has .clusterQueue $queues) -}}
{{- fail (printf "queues.localQueues: '%s' names the ClusterQueue '%s', which is none of queues.clusterQueues (%s); add it there, or choose one of them." .name .clusterQueue (join ", " $queues)) -}}
{{- end -}}
{{- if not (has .namespace $namespaces) -}}
{{- fail (printf "queues.localQueues: '%s' is in the namespace '%s', which is none of namespaces (%s); add it there, or choose one of them." .name .namespace (join ", " $namespaces)) -}}
{{- end -}}
{{- $place := printf "%s/%s" .namespace .name -}}
{{- if has $place $places -}}
{{- fail (printf "queues.localQueues: '%s' is listed twice in the namespace '%s'; keep one." .name .namespace) -}}
{{- end -}}
{{- $places = append $places $place -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The names of the items, as JSON; fails if a name is listed twice. */}}
{{- define "ddp-platform.unique" -}}
{{- $names := list -}}
{{- range .items -}}
{{- if has .name $names -}}
{{- fail (printf "%s: '%s' is listed twice; keep one." $.key .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- toJson $names -}}
{{- end }}
