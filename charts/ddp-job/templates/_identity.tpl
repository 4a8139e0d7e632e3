{{/* What the run is, as the plugin writes it down: document, digest, run id; and who runs it. */}}

{{/* Whether a cluster has been asked what it serves: kinds, beside groups, are known of a real one alone. */}}
{{- define "ddp-job.knowsCluster" -}}
{{- if .root.Capabilities.APIVersions.Has "v1/Pod" -}}yes{{- end -}}
{{- end -}}

{{- define "ddp-job.engine" -}}
{{- $has := .root.Capabilities.APIVersions -}}
{{- $engine := .spec.engine -}}
{{- if and (eq $engine "auto") .present -}}{{- $engine = .present.engine -}}{{- end -}}
{{- if and (eq $engine "auto") (include "ddp-job.knowsCluster" .) -}}
{{- $engine = "" -}}
{{- range $place := until (len .c.engines) -}}
{{- range $name, $about := $.c.engines -}}
{{- $isServed := $has.Has (printf "%s/%s" $about.apiVersion $about.kind) -}}
{{- if eq $name "job" -}}{{- $isServed = semverCompare ">=1.31.0-0" $.root.Capabilities.KubeVersion.Version -}}{{- end -}}
{{- if and (not $engine) (eq (int $about.order) $place) $isServed -}}{{- $engine = $name -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $engine -}}
{{- fail (printf "The cluster can run no job: it has neither Kubeflow's training operator, nor Kubeflow Trainer, nor JobSet, and Kubernetes %s is too old for a job of its own. Install one of them." .root.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}
{{- $_ := set .spec "engine" $engine -}}
{{- if eq $engine "auto" -}}{{- $engine = "pytorchjob" -}}{{- end -}}
{{- $_ := set . "engine" (get .c.engines $engine | merge (dict "name" $engine)) -}}
{{- end -}}

{{- define "ddp-job.gang" -}}
{{- if and (eq .spec.gang "auto") (include "ddp-job.knowsCluster" .) -}}
{{- $gang := ternary "kueue" "" (ne "" (default "" .spec.queue)) -}}
{{- if .present -}}
{{- $gang = get .present.object.metadata.annotations .c.annotation.SPEC | fromJson | dig "gang" $gang -}}
{{- end -}}
{{- range .c.gangs.served -}}
{{- if and (not $gang) ($.root.Capabilities.APIVersions.Has (printf "%s/%s" .apiVersion .kind)) -}}{{- $gang = .gang -}}{{- end -}}
{{- end -}}
{{- if not $gang -}}
{{- fail "Nobody in the cluster starts nodes together: it has neither Volcano, nor KAI, nor the scheduler plugins, and no queue is named. Name a queue of Kueue's with queue, or leave gang out." -}}
{{- end -}}
{{- $_ := set .spec "gang" $gang -}}
{{- include "ddp-job.queue" . -}}
{{- end -}}
{{- end -}}

{{/* Whether Kueue decides when the run begins. */}}
{{- define "ddp-job.queue" -}}
{{- $_ := set . "isKueues" (and (ne "" (default "" .spec.queue)) (has .spec.gang .c.gangs.ofKueue)) -}}
{{- end -}}

{{/* The run's own document: the keys of a job file, normalised, as one line of JSON. */}}
{{- define "ddp-job.document" -}}
{{- $spec := .spec -}}
{{- $document := dict "apiVersion" .c.document.apiVersion "kind" .c.document.kind -}}
{{- range $key := list "name" "namespace" "script" "code" "module" "command" "args" "nnodes" "parallel" "cpu" "memory" "shm" "image" "env" "checkpointClaim" "priority" "nodeSelector" "engine" "queue" "queuePriority" "gang" "scheduler" "gpuType" "mig" "networks" "fabric" "egress" -}}
{{- $value := get $spec $key -}}
{{- if hasKey $spec $key -}}
{{- if not (and (or (kindIs "slice" $value) (kindIs "map" $value)) (empty $value)) -}}{{- $_ := set $document $key $value -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- range $key := list "nproc" "gpus" "maxRestarts" "grace" "deadline" "ttl" -}}
{{- if hasKey $spec $key -}}{{- $_ := set $document $key (get $spec $key) -}}{{- end -}}
{{- end -}}
{{- range $key := list "envFrom" "tolerations" "mounts" "secrets" "topology" "metricsFrom" "dns" -}}
{{- $texts := list -}}
{{- range get $spec $key -}}{{- $texts = append $texts .text -}}{{- end -}}
{{- if $texts -}}{{- $_ := set $document $key $texts -}}{{- end -}}
{{- end -}}
{{- $secrets := dict -}}
{{- range $name, $entry := $spec.secretEnv -}}{{- $_ := set $secrets $name $entry.text -}}{{- end -}}
{{- if $secrets -}}{{- $_ := set $document "secretEnv" $secrets -}}{{- end -}}
{{- with $spec.rdma -}}{{- $_ := set $document "rdma" .text -}}{{- end -}}
{{- $document | mustToRawJson -}}
{{- end -}}

{{- define "ddp-job.identity" -}}
{{- $document := include "ddp-job.document" . -}}
{{- $computed := omit (fromJson $document) "name" -}}
{{- with .code -}}{{- $_ := set $computed "code" .digest -}}{{- end -}}
{{- $_ := set . "document" $document -}}
{{- $_ := set . "digest" (mustToRawJson $computed | sha256sum) -}}
{{- $runId := .root.Values.runId | default (trunc (int .c.runIdLength) .digest) -}}
{{- if and .present (not .root.Values.runId) -}}{{- $runId = get .present.object.metadata.labels .c.label.RUN_ID -}}{{- end -}}
{{- if not (regexMatch "^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" $runId) -}}
{{- fail (printf "runId: '%s' is no value of a label. Use letters, digits, '-', '_' and '.'." $runId) -}}
{{- end -}}
{{- $_ := set . "runId" $runId -}}
{{- end -}}
