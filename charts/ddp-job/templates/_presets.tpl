{{/* Presets that a namespace shares, in the ConfigMap that the platform's chart makes of its presets. */}}

{{/* Their values stand under those that are said. Every value has a default here, so one that is the default says nothing. */}}
{{- define "ddp-job.sharedPreset" -}}
{{- $_ := set . "fallbacks" .c.defaults -}}
{{- $name := .said.preset -}}
{{- $shared := dict -}}
{{- if include "ddp-job.knowsCluster" . -}}
{{- $shared = include "ddp-job.namespacePresets" . | fromJson -}}
{{- end -}}
{{- if not (hasKey $shared $name) -}}
{{- $why := ternary "" "; those of a cluster are known where one is asked, by helm install and not by helm template" (ne "" (include "ddp-job.knowsCluster" .)) -}}
{{- fail (printf "preset: there is no preset '%s'%s. There are %s." $name $why (concat (keys .presets) (keys $shared) | sortAlpha | join ", ")) -}}
{{- end -}}
{{- $document := get $shared $name | fromYaml -}}
{{- include "ddp-job.presetIsRead" (dict "job" . "name" $name "document" $document) -}}
{{- range $key, $setting := $document.settings -}}
{{- $words := splitn "." 2 $key -}}
{{- if has $words._0 $.c.presets.maps -}}
{{- /* Not by merge, which takes an empty value for one that is not there. */ -}}
{{- $map := get $.said $words._0 | default dict -}}
{{- if not (hasKey $map $words._1) -}}{{- $_ := set $map $words._1 $setting.value -}}{{- end -}}
{{- $_ := set $.said $words._0 $map -}}
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

{{/* Stops at a preset that is not what one should be; an administrator may have written it by hand. */}}
{{- define "ddp-job.presetIsRead" -}}
{{- $presets := .job.c.presets -}}
{{- $wrong := "" -}}
{{- if not (kindIs "map" .document.settings) -}}
{{- $said := get .document "Error" | toString -}}
{{- $wrong = ternary (printf "it is no YAML (%s)" $said) "it has no 'settings'" (contains "converting YAML" $said) -}}
{{- else -}}
{{- range $key, $setting := .document.settings -}}
{{- $words := splitn "." 2 $key -}}
{{- $isMap := has $words._0 $presets.maps -}}
{{- if not $wrong -}}
{{- if or (has $words._0 $presets.own) (not (or $isMap (has $words._0 $presets.keys))) (ne $isMap (ne "" (toString (default "" $words._1)))) -}}
{{- $wrong = printf "no preset sets '%s'" $key -}}
{{- else if not (and (kindIs "map" $setting) (hasKey ($setting | default dict) "value")) -}}
{{- $wrong = printf "'%s' has no 'value'" $key -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $wrong -}}
{{- fail (printf "The preset '%s' of the ConfigMap '%s' in namespace '%s' cannot be read: %s. Tell who runs the cluster; the chart ddp-platform writes such presets from its value 'presets'." .name $presets.configMap .job.root.Release.Namespace $wrong) -}}
{{- end -}}
{{- end -}}
