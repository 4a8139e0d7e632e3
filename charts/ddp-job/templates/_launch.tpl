{{/* Command lines and environments. */}}

{{/* Text that the kubelet's $(NAME) expansion turns back into itself. */}}
{{- define "ddp-job.literal" -}}
{{- if or (contains "$$" .) (contains "$(" .) -}}{{- replace "$" "$$" . -}}{{- else -}}{{- . -}}{{- end -}}
{{- end -}}

{{/* The launcher; behind a shell where the fabric's vendor has a script. What the job says itself outlasts the script. */}}
{{- define "ddp-job.command" -}}
{{- $load := values .added.load -}}
{{- $libraries := values .added.libraryPath -}}
{{- if or $load $libraries -}}
{{- $lines := list -}}
{{- if $libraries -}}
{{- $lines = printf "export LD_LIBRARY_PATH=%s\"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\"" (join ":" $libraries) | append $lines -}}
{{- end -}}
{{- if $load -}}
{{- $said := list -}}
{{- range $name := concat (keys .spec.env) (keys .spec.secretEnv) | sortAlpha -}}
{{- if hasPrefix "NCCL_" $name -}}{{- $said = append $said $name -}}{{- end -}}
{{- end -}}
{{- $lines = ternary (printf "kept=\"$(declare -p %s)\"" (join " " $said)) "kept=" (gt (len $said) 0) | append $lines -}}
{{- $lines = append (concat $lines $load) "eval \"$kept\"" -}}
{{- end -}}
{{- $lines = printf "exec %s \"$@\"" .c.launcher | append $lines -}}
{{- list "bash" "-c" (join "\n" $lines | include "ddp-job.literal") .c.launcher | toJson -}}
{{- else -}}
{{- list .c.launcher | toJson -}}
{{- end -}}
{{- end -}}

{{- define "ddp-job.arguments" -}}
{{- $spec := .spec -}}
{{- $arguments := list (printf "--nnodes=%d:%d" $spec.least $spec.most) (printf "--nproc-per-node=%d" $spec.nproc) "--rdzv-backend=ddp" (printf "--rdzv-endpoint=%s-store:%d" $spec.name (int .c.port.RENDEZVOUS)) (printf "--rdzv-id=%s" .runId) (printf "--max-restarts=%d" $spec.maxRestarts) "--tee=3" (printf "--log-line-prefix-template=%s" .c.logPrefix) -}}
{{- range .start -}}{{- $arguments = append $arguments (include "ddp-job.literal" .) -}}{{- end -}}
{{- toJson $arguments -}}
{{- end -}}

{{/* What every pod of the job knows about itself. */}}
{{- define "ddp-job.ownVariables" -}}
{{- $env := .c.env -}}
{{- $variables := list (dict "name" $env.JOB "value" .spec.name) (dict "name" $env.RUN_ID "value" .runId) (dict "name" $env.SECRET_FILE "value" .c.runSecret.file) -}}
{{- range $fact := list (list $env.NAMESPACE "metadata.namespace") (list $env.POD_NAME "metadata.name") (list $env.POD_IP "status.podIP") (list $env.NODE_NAME "spec.nodeName") -}}
{{- $variables = append $variables (dict "name" (first $fact) "valueFrom" (dict "fieldRef" (dict "fieldPath" (last $fact)))) -}}
{{- end -}}
{{- toJson $variables -}}
{{- end -}}

{{/* The contract's variables, then those of the job; a name stands once, since a server-side apply refuses a second. */}}
{{- define "ddp-job.workerVariables" -}}
{{- $env := .c.env -}}
{{- $variables := include "ddp-job.ownVariables" . | fromJsonArray -}}
{{- range $pair := list (list $env.RUN_DIR .c.path.RUN_DIR) (list $env.CHECKPOINT_DIR .c.path.CHECKPOINT_DIR) (list $env.CHECKPOINT_SCOPE (ternary .c.scope.JOB .c.scope.POD (hasKey .spec "checkpointClaim"))) (list $env.METRICS_PORT (int .c.port.METRICS | toString)) (list $env.TERMINATION_LOG .c.path.TERMINATION_LOG) (list $env.GRACE_SECONDS (toString .spec.grace)) (list $env.SHARE_STORE_OFF "1") (list $env.PARALLEL .spec.parallel) (list "HOME" .c.path.SCRATCH) -}}
{{- if last $pair -}}
{{- $variables = append $variables (dict "name" (first $pair) "value" (last $pair)) -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := .spec.env -}}
{{- $variables = append $variables (dict "name" $name "value" (include "ddp-job.literal" $value)) -}}
{{- end -}}
{{- range $name, $entry := .spec.secretEnv -}}
{{- $variables = append $variables (dict "name" $name "valueFrom" (dict "secretKeyRef" (dict "name" $entry.secret "key" $entry.key))) -}}
{{- end -}}
{{- $last := dict -}}
{{- range $variables -}}{{- $_ := set $last .name . -}}{{- end -}}
{{- $once := list -}}
{{- $seen := dict -}}
{{- range $variables -}}
{{- if not (hasKey $seen .name) -}}{{- $once = append $once (get $last .name) -}}{{- end -}}
{{- $_ := set $seen .name true -}}
{{- end -}}
{{- toJson $once -}}
{{- end -}}
