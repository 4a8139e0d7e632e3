{{/* The run, computed once and kept beside the values: name, engine, nodes, document, run id, and what an upgrade found. */}}
{{- define "ddp-job.resolve" -}}
{{- if not (hasKey .Values "_run") -}}
{{- $run := dict "name" (.Values.name | default .Release.Name) "image" (.Values.image | default (printf "ddp-trainer:%s" .Chart.AppVersion)) -}}
{{- $bounds := include "ddp-job.text" .Values.nnodes | splitList ":" -}}
{{- $run = dict "minNodes" (first $bounds | atoi) "maxNodes" (last $bounds | atoi) "nodes" (ternary (first $bounds | atoi) (add (last $bounds | atoi) (int .Values.spares)) .Values.kueue.elastic) | merge $run -}}
{{- $_ := set $run "nproc" (.Values.nproc | default .Values.gpus | default 1 | int) -}}
{{- $_ := set $run "suspend" (ne "" .Values.kueue.queue) -}}
{{- $_ := set $run "code" (ternary "archive" (ternary "script" "" (ne "" .Values.scriptText)) (ne "" .Values.codeArchive)) -}}
{{- $_ := set $run "present" (include "ddp-job.present" . | fromJson) -}}
{{- $_ := set $run "engine" (include "ddp-job.engine" (dict "root" . "run" $run)) -}}
{{- range include "ddp-job.engines" . | fromJsonArray -}}{{- if eq .name $run.engine -}}{{- $_ := set $run "kind" . -}}{{- end -}}{{- end -}}
{{- $_ := set $run "document" (include "ddp-job.document" (dict "root" . "run" $run)) -}}
{{- $digested := omit (fromJson $run.document) "name" -}}
{{- if $run.code -}}
{{- $_ := set $run "codeDigest" (ternary .Values.codeArchive .Values.scriptText (eq $run.code "archive") | sha256sum) -}}
{{- $_ := set $digested "code" $run.codeDigest -}}
{{- $parts := list -}}
{{- range $number, $at := untilStep 0 (max (len .Values.codeArchive) 1 | int) 1228800 -}}
{{- $end := ternary "" (printf "-%d" $number) (eq $number 0) -}}
{{- $parts = printf "%s-code-%s%s" $run.name (trunc 10 $run.codeDigest) $end | append $parts -}}
{{- end -}}
{{- $_ := set $run "codeParts" $parts -}}
{{- end -}}
{{- $_ := set $run "digest" (mustToRawJson $digested | sha256sum) -}}
{{- $_ := set $run "runId" (.Values.runId | default (trunc 12 $run.digest)) -}}
{{- $_ := set $run "rendered" (omit .Values "networkPolicy" "podMonitor" "global" | toJson | printf "%s %s" .Chart.Version | sha256sum) -}}
{{- if .Release.IsUpgrade -}}{{- include "ddp-job.guardUpgrade" (dict "root" . "run" $run) -}}{{- end -}}
{{- $_ := set $run "secret" (.Values.runSecret | default (printf "%s-run-%s" $run.name (sha256sum $run.runId | trunc 10))) -}}
{{- $_ := set .Values "_run" $run -}}
{{- end -}}
{{- end -}}

{{/* All engines, in the order of preference, as JSON. `make docs` writes the file. */}}
{{- define "ddp-job.engines" -}}{{- .Files.Get "files/engines.json" -}}{{- end -}}

{{/* The value at a path of an object, as JSON. */}}
{{- define "ddp-job.at" -}}
{{- $at := .object -}}
{{- range .path -}}{{- $at = ternary (int .) . (kindIs "float64" .) | index $at -}}{{- end -}}
{{- toJson $at -}}
{{- end -}}

{{/* `auto` is the engine of the run that is there, else the first that the cluster serves; a PyTorchJob if Helm contacts none. */}}
{{- define "ddp-job.engine" -}}
{{- $engine := ternary (.run.present.engine | default "") .root.Values.engine (eq .root.Values.engine "auto") -}}
{{- if not $engine -}}
{{- $engines := include "ddp-job.engines" .root | fromJsonArray -}}
{{- $engine = (ternary (last $engines) (first $engines) (.root.Capabilities.APIVersions.Has "v1/Pod")).name -}}
{{- range reverse $engines -}}
{{- if and (not .builtIn) (printf "%s/%s" .apiVersion .kind | $.root.Capabilities.APIVersions.Has) -}}{{- $engine = .name -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $engine -}}
{{- end -}}

{{/* The run as a job file, for kubectl ddp: the values that are keys of a job file, and over them `jobFile`. */}}
{{- define "ddp-job.document" -}}
{{- $v := .root.Values -}}
{{- $document := dict "apiVersion" "ddp.dev/v1" "kind" "Job" "name" .run.name "image" .run.image "engine" (ternary .run.engine $v.engine (.root.Capabilities.APIVersions.Has "v1/Pod")) -}}
{{- $_ := set $document "nnodes" (include "ddp-job.text" $v.nnodes) -}}
{{- $_ := set $document "nproc" .run.nproc -}}
{{- $_ := set $document "egress" $v.networkPolicy.egress -}}
{{- range $key, $value := dict "gpus" $v.gpus "spares" $v.spares "maxRestarts" $v.maxRestarts "grace" $v.terminationGracePeriodSeconds "deadline" $v.activeDeadlineSeconds "ttl" $v.ttlSecondsAfterFinished -}}
{{- if not (kindIs "invalid" $value) -}}{{- $_ := int64 $value | set $document $key -}}{{- end -}}
{{- end -}}
{{- range $key, $value := dict "cpu" $v.cpu "memory" $v.memory "shm" $v.shm "python" $v.python "runtimeImage" $v.runtimeImage "runtimeMount" $v.runtimeMount "script" $v.script "code" $v.code "codeClaim" $v.codeClaim "module" $v.module "parallel" $v.parallel "checkpointClaim" $v.checkpointClaim "priority" $v.priorityClassName "queue" $v.kueue.queue "queuePriority" $v.kueue.priorityClass "queueResize" (ternary "running" "" $v.kueue.elastic) -}}
{{- with include "ddp-job.text" $value -}}{{- $_ := set $document $key . -}}{{- end -}}
{{- end -}}
{{- $_ := set $document "command" (include "ddp-job.texts" $v.command | fromJsonArray) -}}
{{- $_ := set $document "args" (include "ddp-job.texts" $v.args | fromJsonArray) -}}
{{- $env := dict -}}
{{- range $name, $value := $v.env -}}{{- $_ := include "ddp-job.text" $value | set $env $name -}}{{- end -}}
{{- $secretEnv := dict -}}
{{- range $name, $entry := $v.secretEnv -}}{{- $_ := printf "%s:%s" $entry.name $entry.key | set $secretEnv $name -}}{{- end -}}
{{- $document = merge $document (dict "env" $env "secretEnv" $secretEnv "nodeSelector" $v.nodeSelector) -}}
{{- range $key, $value := $v.jobFile -}}{{- $_ := set $document $key $value -}}{{- end -}}
{{- if hasKey $v.jobFile "namespace" -}}{{- $_ := set $document "namespace" .root.Release.Namespace -}}{{- end -}}
{{- $said := dict -}}
{{- range $key, $value := $document -}}
{{- if not (and (or (kindIs "map" $value) (kindIs "slice" $value)) (empty $value)) -}}{{- $_ := set $said $key $value -}}{{- end -}}
{{- end -}}
{{- mustToRawJson $said -}}
{{- end -}}

{{/* A value as text: a whole number as it was written, whatever type YAML gave it. */}}
{{- define "ddp-job.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{- printf "%.0f" . -}}{{- else if not (kindIs "invalid" .) -}}{{- toString . -}}{{- end -}}
{{- end -}}

{{- define "ddp-job.texts" -}}
{{- $texts := list -}}
{{- range . -}}{{- $texts = include "ddp-job.text" . | append $texts -}}{{- end -}}
{{- mustToJson $texts -}}
{{- end -}}

{{/* Those entries of a dict that are neither empty nor zero, as YAML. */}}
{{- define "ddp-job.given" -}}
{{- $given := dict -}}
{{- range $key, $value := . -}}{{- if $value -}}{{- $_ := set $given $key $value -}}{{- end -}}{{- end -}}
{{- with $given -}}{{- toYaml . -}}{{- end -}}
{{- end -}}

{{/* Text that the kubelet's $(NAME) expansion returns unchanged. */}}
{{- define "ddp-job.literal" -}}
{{- if or (contains "$$" .) (contains "$(" .) -}}{{- replace "$" "$$" . -}}{{- else -}}{{- . -}}{{- end -}}
{{- end -}}

{{/* A value as JSON that every reader of YAML takes: control characters, which some refuse, are escaped. */}}
{{- define "ddp-job.quoted" -}}
{{- $text := mustToJson . -}}
{{- if regexMatch "[\\x{7f}-\\x{9f}\\x{feff}\\x{fffe}\\x{ffff}]" $text -}}
{{- range concat (untilStep 127 160 1) (list 65279 65534 65535) -}}
{{- $text = replace (printf "%c" .) (printf "\\u%04x" .) $text -}}
{{- end -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/* Metadata of an object, given (dict "root" $ "name" NAME), and "role" if it has one. The release owns the object. */}}
{{- define "ddp-job.metadata" -}}
name: {{ .name | quote }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "ddp-job.runLabels" . | nindent 2 }}
  app.kubernetes.io/name: {{ .root.Chart.Name }}
  app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Labels of pods: those that kubectl ddp gives them, then "more" and `labels`, then a default: a proxy in front of the collectives' ports breaks them. */}}
{{- define "ddp-job.podLabels" -}}
{{- $own := include "ddp-job.runLabels" . | fromYaml | merge (dict "app.kubernetes.io/managed-by" "kubectl-ddp") -}}
{{- list $own .more .root.Values.labels (dict "sidecar.istio.io/inject" "false") | include "ddp-job.entries" -}}
{{- end -}}

{{/* The entries of maps of texts, one on each line; the first of the maps wins. */}}
{{- define "ddp-job.entries" -}}
{{- $found := dict -}}
{{- range . -}}{{- range $name, $text := . -}}{{- if not (hasKey $found $name) -}}{{- $_ := set $found $name $text -}}{{- end -}}{{- end -}}{{- end -}}
{{- range $name, $text := $found }}
{{ $name | quote }}: {{ include "ddp-job.quoted" $text }}
{{- end -}}
{{- end -}}

{{- define "ddp-job.runLabels" -}}
ddp.dev/job: {{ .root.Values._run.name | quote }}
ddp.dev/run-id: {{ .root.Values._run.runId | quote }}
{{- with .role }}
ddp.dev/role: {{ . }}
{{- end }}
{{- end -}}

{{/* Labels of all pods of the run, or of those of a role, as the inside of a map in flow style. */}}
{{- define "ddp-job.selector" -}}
ddp.dev/job: {{ .root.Values._run.name | quote }}{{ with .role }}, ddp.dev/role: {{ . }}{{ end }}
{{- end -}}

{{/* Metadata of the root object, which kubectl ddp reads the run from. */}}
{{- define "ddp-job.rootMetadata" -}}
{{ include "ddp-job.metadata" (dict "root" . "name" .Values._run.name) }}
  {{- include "ddp-job.given" (dict "kueue.x-k8s.io/queue-name" .Values.kueue.queue "kueue.x-k8s.io/priority-class" .Values.kueue.priorityClass) | nindent 2 }}
  {{- list .Values.jobLabels .Values.labels | include "ddp-job.entries" | nindent 2 }}
annotations:
  ddp.dev/digest: {{ .Values._run.digest | quote }}
  ddp.dev/spec: {{ include "ddp-job.quoted" .Values._run.document }}
  ddp.dev/rendered: {{ .Values._run.rendered | quote }}
  {{- list .Values.jobAnnotations .Values.annotations | include "ddp-job.entries" | nindent 2 }}
{{- end -}}
