{{/* What protects a running release: an upgrade leaves the run as it is, or stops. */}}

{{/* The root object of this release and its engine, as JSON; empty before an upgrade, and if Helm contacts no cluster. All
     kinds are read: with another engine, or another name, Helm would make a second run beside the first. */}}
{{- define "ddp-job.present" -}}
{{- $found := dict -}}
{{- if .Release.IsUpgrade -}}
{{- range $kind := include "ddp-job.engines" . | fromJsonArray | reverse -}}
{{- if or $kind.builtIn (printf "%s/%s" $kind.apiVersion $kind.kind | $.Capabilities.APIVersions.Has) -}}
{{- range $item := (lookup $kind.apiVersion $kind.kind $.Release.Namespace "").items -}}
{{- $annotations := $item.metadata.annotations | default dict -}}
{{- if and (eq (get $annotations "meta.helm.sh/release-name") $.Release.Name) (hasKey $annotations "ddp.dev/spec") -}}
{{- $found = dict "engine" $kind.name "object" $item -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* The run that is there decides its run id, its nodes and whether it is suspended. */}}
{{- define "ddp-job.guardUpgrade" -}}
{{- $run := .run -}}
{{- if not $run.present -}}
{{- include "ddp-job.stopIfOver" . -}}
{{- else -}}
{{- include "ddp-job.stopIfChanged" . -}}
{{- $object := $run.present.object -}}
{{- $_ := get $object.metadata.labels "ddp.dev/run-id" | set $run "runId" -}}
{{- $_ := include "ddp-job.at" (dict "object" $object "path" $run.kind.suspend) | eq "true" | set $run "suspend" -}}
{{- with $run.kind.scalable -}}{{- $_ := include "ddp-job.at" (dict "object" $object "path" .) | int64 | set $run "nodes" -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* A new run beside the store of the one that is gone would find no peer: that store has ended. */}}
{{- define "ddp-job.stopIfOver" -}}
{{- if lookup "batch/v1" "Job" .root.Release.Namespace (printf "%s-store" .run.name) -}}
{{- fail (printf "The run '%s' of this release is gone, by its ttlSecondsAfterFinished or by hand, and its store is not: a new run would find no peer. Remove the rest with 'helm uninstall %s -n %s', then install again." .run.name .root.Release.Name .root.Release.Namespace) -}}
{{- end -}}
{{- end -}}

{{/* Kubernetes refuses a changed Job, and a changed PyTorchJob is two runs in one. */}}
{{- define "ddp-job.stopIfChanged" -}}
{{- $there := .run.present.object.metadata -}}
{{- $isSame := and (eq $there.name .run.name) (eq .run.present.engine .run.engine) (eq (get $there.annotations "ddp.dev/rendered") .run.rendered) -}}
{{- if not $isSame -}}
{{- $before := get $there.annotations "ddp.dev/spec" | fromJson -}}
{{- $after := fromJson .run.document -}}
{{- $changed := list -}}
{{- range $key := concat (keys $before) (keys $after) | uniq | sortAlpha -}}
{{- if ne (get $before $key | toJson) (get $after $key | toJson) -}}{{- $changed = append $changed $key -}}{{- end -}}
{{- end -}}
{{- $what := join ", " $changed | default (printf "values of its pods, or the chart (%s then, %s-%s now)" (get $there.labels "helm.sh/chart") .root.Chart.Name .root.Chart.Version) -}}
{{- fail (printf "The run '%s' of this release is there, and this upgrade would change what stays as long as a run is there: %s. Nothing was changed. Remove the run with 'helm uninstall %s -n %s' and install it again, which resumes from the checkpoints on its checkpointClaim; or install the new values under another release name, or with 'kubectl ddp clone %s -n %s'." $there.name $what .root.Release.Name .root.Release.Namespace $there.name .root.Release.Namespace) -}}
{{- end -}}
{{- end -}}
