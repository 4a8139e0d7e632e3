{{/* Checks text values against the patterns of files/shapes.yaml. */}}

{{- define "ddp-platform.validate.texts" -}}
{{- $table := .Files.Get "files/shapes.yaml" | fromYaml -}}
{{- range $path, $shape := $table.values -}}
{{- include "ddp-platform.validate.below" (dict "node" $.Values "path" (splitList "/" $path) "key" "" "shape" (get $table.shapes $shape)) -}}
{{- end -}}
{{- end }}

{{/* Checks the texts below a node: "path" is the rest of the path, "key" the part before it, for messages. */}}
{{- define "ddp-platform.validate.below" -}}
{{- if not .path -}}
{{- include "ddp-platform.validate.text" . -}}
{{- else if and .node (or (kindIs "map" .node) (kindIs "slice" .node)) -}}
{{- $next := dict "path" (rest .path) "shape" .shape -}}
{{- $step := first .path -}}
{{- if eq $step "[]" -}}
{{- range $index, $item := .node -}}
{{- include "ddp-platform.validate.below" (merge (dict "node" $item "key" (printf "%s[%d]" $.key $index)) $next) -}}
{{- end -}}
{{- else if has $step (list "*" "~") -}}
{{- range $name, $item := .node -}}
{{- include "ddp-platform.validate.below" (merge (dict "node" (ternary $name $item (eq $step "~")) "key" (ternary $.key (printf "%s.%s" $.key $name) (eq $step "~"))) $next) -}}
{{- end -}}
{{- else if hasKey .node $step -}}
{{- include "ddp-platform.validate.below" (merge (dict "node" (get .node $step) "key" (printf "%s.%s" .key $step | trimPrefix ".")) $next) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "ddp-platform.validate.text" -}}
{{- if kindIs "string" .node -}}
{{- if not (regexMatch .shape.pattern .node) -}}
{{- fail (printf "%s: '%s' %s. %s" .key .node .shape.what .shape.hint) -}}
{{- else if and .shape.unlike (regexMatch (toString .shape.unlike) .node) -}}
{{- fail (printf "%s: '%s' %s" .key .node .shape.reason) -}}
{{- end -}}
{{- end -}}
{{- end }}
