{{/* Presets that a namespace shares, in the ConfigMap that the platform's chart makes of its presets. */}}

{{/* Their values stand under those that are said. Every value has a default here, so one that is the default says nothing. */}}
{{- define "ddp-job.sharedPreset" -}}
{{- $_ := set . "fallbacks" .c.defaults -}}
{{- $name := .said.preset -}}
{{- $shared := dict -}}
{{- if include "ddp-job.knowsCluster" . -}}
{{- $shared = (lookup "v1" "ConfigMap" .root.Release.Namespace .c.presets.configMap).data | default dict -}}
{{- end -}}
{{- $place := printf "ConfigMap '%s' in namespace '%s'" .c.presets.configMap .root.Release.Namespace -}}
{{- if not (hasKey $shared $name) -}}
{{- $why := ternary "" "; those of a cluster are known where one is asked, by helm install and not by helm template" (ne "" (include "ddp-job.knowsCluster" .)) -}}
{{- fail (printf "preset: there is no preset '%s'%s. There are %s." $name $why (concat (keys .presets) (keys $shared) | sortAlpha | join ", ")) -}}
{{- end -}}
{{- range $key, $setting := (get $shared $name | fromYaml).settings -}}
{{- $words := splitn "." 2 $key -}}
{{- $isMap := has $words._0 $.c.presets.maps -}}
{{- if or (has $words._0 $.c.presets.own) (not (or $isMap (has $words._0 $.c.presets.keys))) (ne $isMap (contains "." $key)) -}}
{{- fail (printf "preset: the preset '%s' of the %s cannot be read: no preset sets '%s'. Tell who runs the cluster; the chart ddp-platform writes such presets from its value 'presets'." $name $place $key) -}}
{{- end -}}
{{- if $isMap -}}
{{- $_ := set $.said $words._0 (merge (get $.said $words._0 | default dict) (dict $words._1 $setting.value)) -}}
{{- else -}}
{{- $default := get $.c.defaults $words._0 | default (ternary "auto" "" (eq $words._0 "fabric")) -}}
{{- $isSaid := hasKey $.said $words._0 -}}
{{- if $isSaid -}}
{{- $isSaid = ne (get $.said $words._0 | toJson | replace "\"" "") (toJson $default | replace "\"" "") -}}
{{- end -}}
{{- if not $isSaid -}}{{- $_ := set $.said $words._0 $setting.value -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
