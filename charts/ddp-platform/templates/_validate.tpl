{{/*
Checks of values against one another and against the cluster. Each fails with the value and the fix. Single values are
checked by values.schema.json, and the form of texts by files/shapes.yaml.
*/}}
{{- define "ddp-platform.validate" -}}
{{- include "ddp-platform.validate.texts" . -}}
{{- include "ddp-platform.validate.namespaces" . -}}
{{- include "ddp-platform.validate.presets" . -}}
{{- include "ddp-platform.validate.amounts" . -}}
{{- include "ddp-platform.validate.policies" . -}}
{{- include "ddp-platform.validate.priorities" . -}}
{{- include "ddp-platform.validate.queues" . -}}
{{- include "ddp-platform.validate.monitoring" . -}}
{{- include "ddp-platform.validate.cluster" . -}}
{{- end }}

{{- define "ddp-platform.validate.namespaces" -}}
{{- $names := list -}}
{{- range (include "ddp-platform.namespaces" . | fromYaml).items -}}
{{- if has .name $names -}}
{{- fail (printf "namespaces: '%s' is listed twice; keep one." .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- if and .rdma (ne .podSecurity "privileged") -}}
{{- fail (printf "namespaces: '%s' has rdma: true, for pods that add IPC_LOCK, and podSecurity: %s, which refuses them; set its podSecurity to privileged, or leave rdma out: jobs of kubectl ddp use RDMA without it." .name .podSecurity) -}}
{{- end -}}
{{- if and (not .create) (or .labels .annotations) -}}
{{- fail (printf "namespaces: '%s' has create: false, so its labels and annotations are not this chart's; leave them out, or set create to true." .name) -}}
{{- end -}}
{{- end -}}
{{- range $key, $name := dict "prePull.namespace" .Values.prePull.namespace "test.namespace" .Values.test.namespace -}}
{{- if and $name (not (has $name $names)) -}}
{{- fail (printf "%s: '%s' is none of namespaces (%s); choose one of them, or add it there." $key $name (join ", " $names)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* files/presets.json, written by `make docs`: names that kubectl ddp reserves, and the job keys that a preset may set. */}}
{{- define "ddp-platform.validate.presets" -}}
{{- $known := .Files.Get "files/presets.json" | fromJson -}}
{{- range $name, $preset := .Values.presets -}}
{{- if has $name $known.taken -}}
{{- fail (printf "presets: '%s' is a preset or a fabric that kubectl ddp brings; choose another name." $name) -}}
{{- end -}}
{{- range $key, $_ := $preset.settings -}}
{{- $head := splitList "." $key | first -}}
{{- if and (has $head $known.maps) (not (regexMatch "^[^.]+[.].+" $key)) -}}
{{- fail (printf "presets: '%s' sets '%s', which is a map; set an entry of it, as in %s.NAME." $name $key $key) -}}
{{- else if not (or (has $key $known.keys) (has $head $known.maps)) -}}
{{- fail (printf "presets: '%s' sets '%s', and no preset has such a key; there are %s, and entries of %s." $name $key (join ", " $known.keys) (join ", " $known.maps)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "ddp-platform.validate.amounts" -}}
{{- $bounds := list "min" "defaultRequest" "default" "max" -}}
{{- range $index, $lower := $bounds -}}
{{- range $upper := slice $bounds (add1 $index) -}}
{{- range $resource, $amount := index $.Values.limitRange $lower -}}
{{- $other := get (index $.Values.limitRange $upper) $resource -}}
{{- if and (hasKey (index $.Values.limitRange $upper) $resource) (gt (include "ddp-platform.quantity" $amount | float64) (include "ddp-platform.quantity" $other | float64)) -}}
{{- fail (printf "limitRange: the %s of %s is %v, more than its %s, %v; lower the one or raise the other." $lower $resource $amount $upper $other) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.limitRange -}}
{{- if and .enabled (not (or .min .defaultRequest .default .max)) -}}
{{- fail "limitRange.enabled is true, but no limits are given; set limitRange.min, .defaultRequest, .default or .max, or set limitRange.enabled to false." -}}
{{- end -}}
{{- end -}}
{{- range (include "ddp-platform.namespaces" . | fromYaml).items -}}
{{- if and $.Values.quota.enabled (not .quota) -}}
{{- fail (printf "quota.enabled is true, but namespace '%s' has no quota; set quota.hard, or set quota.enabled to false." .name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "ddp-platform.validate.priorities" -}}
{{- $names := list -}}
{{- $defaults := list -}}
{{- range .Values.priorityClasses -}}
{{- if has .name $names -}}
{{- fail (printf "priorityClasses: '%s' is listed twice; keep one." .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- if .globalDefault -}}
{{- $defaults = append $defaults .name -}}
{{- end -}}
{{- end -}}
{{- if gt (len $defaults) 1 -}}
{{- fail (printf "priorityClasses: %s all have globalDefault: true, and a cluster has one; keep one." (join " and " $defaults)) -}}
{{- end -}}
{{- end }}

{{- define "ddp-platform.validate.monitoring" -}}
{{- with .Values.monitoring -}}
{{- if and (eq (toString .enabled) "true") (not (include "ddp-platform.serves-monitors" $)) -}}
{{- fail "monitoring.enabled is true, and the cluster does not serve PodMonitor and PrometheusRule (monitoring.coreos.com/v1); install the Prometheus operator first, or set monitoring.enabled to auto or false." -}}
{{- end -}}
{{- if gt (include "ddp-platform.seconds" .podMonitor.scrapeTimeout | int) (include "ddp-platform.seconds" .podMonitor.interval | int) -}}
{{- fail (printf "monitoring.podMonitor.scrapeTimeout is %s, more than its interval, %s; Prometheus takes at most the interval." .podMonitor.scrapeTimeout .podMonitor.interval) -}}
{{- end -}}
{{- end -}}
{{- end }}
