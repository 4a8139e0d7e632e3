{{/* What of the run is there already: an upgrade leaves it as it is, or stops. */}}

{{/* The root object of this release and the engine that runs it, as JSON; empty before an upgrade, and where no cluster is
     asked. All kinds are looked at: with another engine, or another name, Helm would make a second run beside the first. */}}
{{- define "ddp-job.present" -}}
{{- $found := dict -}}
{{- if .root.Release.IsUpgrade -}}
{{- range $name, $engine := .constants.engines -}}
{{- if or (eq $name "job") ($.root.Capabilities.APIVersions.Has (printf "%s/%s" $engine.apiVersion $engine.kind)) -}}
{{- range $item := (lookup $engine.apiVersion $engine.kind $.root.Release.Namespace "").items -}}
{{- $annotations := $item.metadata.annotations | default dict -}}
{{- $isOfRelease := eq (get $annotations "meta.helm.sh/release-name" | default "") $.root.Release.Name -}}
{{- if and $isOfRelease (hasKey $annotations $.constants.annotation.SPEC) -}}
{{- $found = dict "engine" $name "object" $item -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* What is there decides what nobody may decide anew: whether it runs, how many nodes it has now, and its run id. */}}
{{- define "ddp-job.presence" -}}
{{- $_ := set . "suspended" .isKueues -}}
{{- $_ := set . "nodes" .spec.most -}}
{{- $_ := set . "rendered" (include "ddp-job.rendered" .) -}}
{{- if and .root.Release.IsUpgrade (not .present) -}}
{{- include "ddp-job.isNotOver" . -}}
{{- end -}}
{{- if .present -}}
{{- $object := .present.object -}}
{{- include "ddp-job.stays" . -}}
{{- if eq .engine.name "pytorchjob" -}}
{{- $_ := set . "suspended" ($object.spec.runPolicy.suspend | default false) -}}
{{- $_ := set . "nodes" (int64 $object.spec.pytorchReplicaSpecs.Worker.replicas) -}}
{{- else -}}
{{- $_ := set . "suspended" ($object.spec.suspend | default false) -}}
{{- if eq .engine.name "job" -}}{{- $_ := set . "nodes" (int64 $object.spec.parallelism) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Stops an upgrade that would make a run anew beside the store of the one that is gone, which has ended and stays so. */}}
{{- define "ddp-job.isNotOver" -}}
{{- if lookup "batch/v1" "Job" .root.Release.Namespace (printf "%s-store" .spec.name) -}}
{{- fail (printf "The run '%s' of this release is gone, by its ttl or by hand, and its store is not: a new one would find nobody there. Take the rest away with 'helm uninstall %s -n %s' and install it anew." .spec.name .root.Release.Name .root.Release.Namespace) -}}
{{- end -}}
{{- end -}}

{{/* Stops an upgrade that would change what cannot be changed while the run is there. */}}
{{- define "ddp-job.stays" -}}
{{- $about := .present.object.metadata -}}
{{- $isSame := and (eq $about.name .spec.name) (eq .present.engine .engine.name) (eq (get $about.annotations .c.renderedAnnotation | default "") .rendered) -}}
{{- if not $isSame -}}
{{- $changed := dict "before" (get $about.annotations .c.annotation.SPEC | fromJson) "after" (fromJson .document) | include "ddp-job.changed" | default (printf "chart, from %s to %s-%s" (get $about.labels "helm.sh/chart") .root.Chart.Name .root.Chart.Version) -}}
{{- fail (printf "The run '%s' of this release is there, and this upgrade would change what stays as long as a run is there: %s. Nothing was changed. Take the run away with 'helm uninstall %s -n %s' and install it anew, which goes on from its checkpoints where they lie on a checkpointClaim; or install the new values beside it under another release name, or with 'kubectl ddp clone %s -n %s'." $about.name $changed .root.Release.Name .root.Release.Namespace $about.name .root.Release.Namespace) -}}
{{- end -}}
{{- end -}}

{{/* The keys in which two documents differ. */}}
{{- define "ddp-job.changed" -}}
{{- $before := .before -}}
{{- $after := .after -}}
{{- $changed := list -}}
{{- range $key := concat (keys $before) (keys $after) | uniq | sortAlpha -}}
{{- if ne (get $before $key | toJson) (get $after $key | toJson) -}}{{- $changed = append $changed $key -}}{{- end -}}
{{- end -}}
{{- join ", " $changed -}}
{{- end -}}

{{/* Digest of all that cannot be changed while the run is there. */}}
{{- define "ddp-job.rendered" -}}
{{- $fixed := list (include "ddp-job.rootSpec" . | fromYaml) (include "ddp-job.storeSpec" . | fromYaml) -}}
{{- if eq .engine.name "trainjob" -}}{{- $fixed = append $fixed (include "ddp-job.runtimeSpec" . | fromYaml) -}}{{- end -}}
{{- toJson $fixed | sha256sum -}}
{{- end -}}
