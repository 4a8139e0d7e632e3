{{/* From values to a complete job, in the order of the plugin's spec: what is said, its preset, what follows from it,
     its fabric. Everything ends in $job.spec. */}}

{{- define "ddp-job.resolve" -}}
{{- $files := .root.Files -}}
{{- range $name := list "constants" "shapes" "fabrics" "presets" -}}
{{- $_ := printf "files/%s.yaml" $name | $files.Get | fromYaml | set $ $name -}}
{{- end -}}
{{- $_ := set . "c" .constants -}}
{{- $_ := set . "present" (include "ddp-job.present" . | fromJson) -}}
{{- $_ := set . "said" (include "ddp-job.said" .root.Values | fromJson) -}}
{{- $_ := set . "spec" (dict "env" dict "secretEnv" dict "nodeSelector" dict) -}}
{{- if and .said.preset (not (hasKey .presets .said.preset)) -}}
{{- include "ddp-job.sharedPreset" . -}}
{{- else -}}
{{- include "ddp-job.preset" . -}}
{{- end -}}
{{- include "ddp-job.program" . -}}
{{- include "ddp-job.texts" . -}}
{{- include "ddp-job.lists" . -}}
{{- include "ddp-job.amounts" . -}}
{{- include "ddp-job.layout" . -}}
{{- include "ddp-job.variables" . -}}
{{- include "ddp-job.fabric" . -}}
{{- include "ddp-job.queue" . -}}
{{- include "ddp-job.rules" . -}}
{{- include "ddp-job.engine" . -}}
{{- include "ddp-job.gang" . -}}
{{- include "ddp-job.identity" . -}}
{{- end -}}

{{/* The values that say something, as JSON. */}}
{{- define "ddp-job.said" -}}
{{- $said := dict -}}
{{- range $key, $value := . -}}
{{- $isNothing := kindIs "invalid" $value -}}
{{- if and (or (kindIs "slice" $value) (kindIs "map" $value)) (ne $key "metricsFrom") -}}
{{- $isNothing = empty $value -}}
{{- else if kindIs "string" $value -}}
{{- $isNothing = eq (toString $value) "" -}}
{{- end -}}
{{- if not (or $isNothing (has $key (list "apiVersion" "kind" "global"))) -}}
{{- $_ := set $said $key $value -}}
{{- end -}}
{{- end -}}
{{- $said | toJson -}}
{{- end -}}

{{/* Values that belong together: those named, or those of GPUs, or those of processors. */}}
{{- define "ddp-job.preset" -}}
{{- $hasGpus := hasKey .said "mig" -}}
{{- if hasKey .said "gpus" -}}
{{- $hasGpus = gt (int .said.gpus) 0 -}}
{{- end -}}
{{- $preset := get .presets (default (ternary "gpu-nccl" "cpu-gloo" $hasGpus) .said.preset) -}}
{{- $_ := set . "fallbacks" (merge (dict) $preset.values .c.defaults) -}}
{{- range $name, $value := $preset.env -}}
{{- $_ := set $.spec.env $name $value -}}
{{- end -}}
{{- end -}}

{{/* What runs, and what travels along. */}}
{{- define "ddp-job.program" -}}
{{- $programs := list -}}
{{- range list "script" "module" "command" -}}
{{- if hasKey $.said . -}}{{- $programs = append $programs . -}}{{- end -}}
{{- end -}}
{{- if gt (len $programs) 1 -}}
{{- fail (printf "%s exclude each other. Keep the one to run." (join " and " $programs)) -}}
{{- end -}}
{{- $program := first $programs | default "" -}}
{{- $start := list -}}
{{- $args := include "ddp-job.words" .said.args | fromJsonArray -}}
{{- $_ := set .spec "args" $args -}}
{{- if eq $program "module" -}}
{{- $_ := include "ddp-job.matching" (dict "shapes" .shapes "shape" "module" "key" "module" "text" .said.module) -}}
{{- $start = list "-m" .said.module -}}
{{- else if eq $program "command" -}}
{{- $words := .said.command -}}
{{- if kindIs "string" $words -}}
{{- if regexMatch "[\"'\\\\]" $words -}}
{{- fail (printf "command: '%s' holds quotes, which a chart does not take apart. Write it as a list, as in '[python, train.py]'." $words) -}}
{{- end -}}
{{- $words = regexReplaceAll "[ \\t\\r\\n]+" $words " " | trim | splitList " " -}}
{{- end -}}
{{- if not (first $words | toString) -}}
{{- fail "command: the command is empty. Name the program, as in 'python train.py'." -}}
{{- else if hasPrefix "-" (first $words | toString) -}}
{{- fail (printf "command: '%s' is no program. Name the program first, as in 'python train.py'." (first $words | toString)) -}}
{{- end -}}
{{- $words = include "ddp-job.words" $words | fromJsonArray -}}
{{- $_ := set .spec "command" $words -}}
{{- $start = concat (list "--no-python") $words -}}
{{- else if eq $program "script" -}}
{{- $start = include "ddp-job.script" . | list -}}
{{- else -}}
{{- fail "Nothing says what to run. Set module, command or script." -}}
{{- end -}}
{{- $_ := set .spec "program" $program -}}
{{- range list "script" "module" "code" -}}
{{- if hasKey $.said . -}}{{- $_ := set $.spec . (get $.said .) -}}{{- end -}}
{{- end -}}
{{- $_ := set . "start" (concat $start $args) -}}
{{- include "ddp-job.code" . -}}
{{- end -}}

{{/* Where the script lies in the pod. */}}
{{- define "ddp-job.script" -}}
{{- $script := .said.script -}}
{{- if .said.code -}}
{{- if or (isAbs $script) (has ".." (splitList "/" $script)) -}}
{{- fail (printf "script: '%s' is not in the directory of code. Write its path from there, as in 'train.py'." $script) -}}
{{- end -}}
{{- printf "%s/%s" .c.path.CODE (clean $script) -}}
{{- else -}}
{{- if not (regexMatch "^[-._A-Za-z0-9]+$" (base $script)) -}}
{{- fail (printf "script: '%s' cannot travel under this name. Rename it: letters, digits, '-', '_' and '.' are allowed." (base $script)) -}}
{{- end -}}
{{- printf "%s/%s" .c.path.CODE (base $script) -}}
{{- end -}}
{{- end -}}

{{/* The one entry of the ConfigMap that brings the code along. */}}
{{- define "ddp-job.code" -}}
{{- $file := ternary .c.archive (base (default "" .said.script)) (hasKey .said "code") -}}
{{- $text := ternary .said.codeArchive .said.scriptText (hasKey .said "code") | default "" -}}
{{- $travels := or (hasKey .said "script") (hasKey .said "code") -}}
{{- if and $travels (not $text) -}}
{{- if hasKey .said "code" -}}
{{- fail (printf "code: the directory '%s' does not travel by itself. Pack it, 'tar czf - -C %s . | base64 -w0 > code.b64', and add --set-file codeArchive=code.b64." .said.code .said.code) -}}
{{- else -}}
{{- fail (printf "script: the text of '%s' does not travel by itself. Add --set-file scriptText=%s." .said.script .said.script) -}}
{{- end -}}
{{- end -}}
{{- if and $text (not $travels) -}}
{{- fail "scriptText and codeArchive are the text of a script and the archive of a directory of code. Name them: script, or code." -}}
{{- end -}}
{{- if gt (len $text) (ternary 1400000 (int .c.largestCode) (hasKey .said "code")) -}}
{{- fail (printf "%s: %d bytes are more than can travel with a job. Put the code into the image." (ternary "codeArchive" "scriptText" (hasKey .said "code")) (len $text)) -}}
{{- end -}}
{{- if $travels -}}
{{- $digest := sha256sum $text -}}
{{- $_ := set . "code" (dict "file" $file "text" $text "digest" $digest "isArchive" (hasKey .said "code")) -}}
{{- end -}}
{{- end -}}

{{/* Keys that are one word. */}}
{{- define "ddp-job.texts" -}}
{{- range $key := list "namespace" "checkpointClaim" "priority" "queue" "queuePriority" "scheduler" "gpuType" "mig" -}}
{{- if hasKey $.said $key -}}
{{- $text := get $.said $key -}}
{{- $_ := include "ddp-job.matching" (dict "shapes" $.shapes "shape" $key "key" $key "text" $text) -}}
{{- $_ := set $.spec $key $text -}}
{{- end -}}
{{- end -}}
{{- $name := .said.name | default .root.Release.Name -}}
{{- $key := ternary "name" "name (the release's, since no name is set)" (hasKey .said "name") -}}
{{- $_ := include "ddp-job.matching" (dict "shapes" .shapes "shape" "name" "key" $key "text" $name) -}}
{{- $_ := set .spec "name" $name -}}
{{- $image := .said.image | default (printf "ddp-trainer:%s" .root.Chart.AppVersion) -}}
{{- $_ := include "ddp-job.matching" (dict "shapes" .shapes "shape" "image" "key" "image" "text" $image) -}}
{{- $_ := set .spec "image" $image -}}
{{- range $key := list "engine" "gang" "egress" -}}
{{- $_ := set $.spec $key (get $.said $key | default (get $.fallbacks $key)) -}}
{{- end -}}
{{- end -}}

{{/* Keys that are lists, and maps of words. */}}
{{- define "ddp-job.lists" -}}
{{- $parsers := dict "tolerations" "toleration" "envFrom" "envSource" "mounts" "mount" "secrets" "secretFiles" "topology" "topology" "metricsFrom" "reader" "dns" "dnsServer" -}}
{{- range $key, $parser := $parsers -}}
{{- $found := list -}}
{{- $given := get $.said $key | default list -}}
{{- if and (eq $key "metricsFrom") (not (hasKey $.said $key)) -}}{{- $given = $.fallbacks.metricsFrom -}}{{- end -}}
{{- range $text := $given -}}
{{- $found = dict "c" $.c "shapes" $.shapes "key" $key "text" $text | include (printf "ddp-job.%s" $parser) | fromJson | append $found -}}
{{- end -}}
{{- $_ := set $.spec $key $found -}}
{{- end -}}
{{- if not .spec.metricsFrom -}}
{{- fail "metricsFrom: the list is empty. Leave it out for the namespace 'monitoring', or name who may read." -}}
{{- end -}}
{{- range $text := .said.networks -}}
{{- $_ := include "ddp-job.matching" (dict "shapes" $.shapes "shape" "networks" "key" "networks" "text" $text) -}}
{{- end -}}
{{- $_ := set .spec "networks" (.said.networks | default list) -}}
{{- range $label, $given := .said.nodeSelector -}}
{{- $value := include "ddp-job.text" $given -}}
{{- if not (regexMatch (printf "^%s$" $.shapes.patterns.qualified) $label) -}}
{{- fail (printf "nodeSelector: '%s' is no label." $label) -}}
{{- end -}}
{{- $_ := include "ddp-job.matching" (dict "shapes" $.shapes "shape" "nodeSelector" "key" (printf "nodeSelector.%s" $label) "text" $value) -}}
{{- $_ := set $.spec.nodeSelector $label $value -}}
{{- end -}}
{{- end -}}

{{/* Numbers, and what follows from one another. */}}
{{- define "ddp-job.amounts" -}}
{{- $nodes := dict "key" "nnodes" "shapes" .shapes "text" (include "ddp-job.text" (ternary .said.nnodes 1 (hasKey .said "nnodes"))) | include "ddp-job.nodes" | fromJson -}}
{{- $least := int64 $nodes.least -}}
{{- $most := int64 $nodes.most -}}
{{- $_ := set .spec "least" $least -}}
{{- $_ := set .spec "most" $most -}}
{{- $_ := set .spec "nnodes" (ternary (printf "%d:%d" $least $most) (toString $least) (lt $least $most)) -}}
{{- $gpus := ternary 1 0 (hasKey .said "mig") | int64 -}}
{{- if hasKey .said "gpus" -}}{{- $gpus = int64 .said.gpus -}}{{- end -}}
{{- $nproc := ternary (max $gpus 1) (int64 .said.nproc) (not (hasKey .said "nproc")) -}}
{{- $millis := ternary (mul 3000 $gpus) (mul 1000 $nproc) (gt $gpus 0) -}}
{{- if hasKey .said "cpu" -}}
{{- $millis = dict "key" "cpu" "text" (include "ddp-job.text" .said.cpu) | include "ddp-job.millis" | atoi | int64 -}}
{{- end -}}
{{- $bytes := ternary (mul 12 1073741824 $gpus) (mul 1073741824 (add 1 $nproc)) (gt $gpus 0) -}}
{{- if hasKey .said "memory" -}}
{{- $bytes = dict "shapes" .shapes "key" "memory" "text" (include "ddp-job.text" .said.memory) | include "ddp-job.bytes" | atoi | int64 -}}
{{- end -}}
{{- $shm := max 1 (div $bytes 4) -}}
{{- if hasKey .said "shm" -}}
{{- $shm = dict "shapes" .shapes "key" "shm" "text" (include "ddp-job.text" .said.shm) | include "ddp-job.bytes" | atoi | int64 -}}
{{- end -}}
{{- $_ := set .spec "gpus" $gpus -}}
{{- $_ := set .spec "nproc" $nproc -}}
{{- $_ := set .spec "millis" $millis -}}
{{- $_ := set .spec "cpu" (include "ddp-job.cores" $millis) -}}
{{- $_ := set .spec "memoryBytes" $bytes -}}
{{- $_ := set .spec "memory" (include "ddp-job.size" (dict "shapes" .shapes "bytes" $bytes)) -}}
{{- $_ := set .spec "shmBytes" $shm -}}
{{- $_ := set .spec "shm" (include "ddp-job.size" (dict "shapes" .shapes "bytes" $shm)) -}}
{{- $_ := set .spec "maxRestarts" (ternary (int64 .said.maxRestarts) (int64 .fallbacks.maxRestarts) (hasKey .said "maxRestarts")) -}}
{{- range $key := list "grace" "deadline" "ttl" -}}
{{- $said := ternary (get $.said $key) (get $.fallbacks $key) (hasKey $.said $key) -}}
{{- if or (hasKey $.said $key) (hasKey $.fallbacks $key) -}}
{{- $_ := set $.spec $key (dict "shapes" $.shapes "key" $key "text" (include "ddp-job.text" $said) | include "ddp-job.seconds" | atoi | int64) -}}
{{- end -}}
{{- end -}}
{{- if hasKey .said "rdma" -}}
{{- $_ := set .spec "rdma" (dict "shapes" .shapes "key" "rdma" "text" .said.rdma | include "ddp-job.rdma" | fromJson) -}}
{{- end -}}
{{- end -}}

{{/* The environment: what is said over what the preset says, and threads by the cores. */}}
{{- define "ddp-job.variables" -}}
{{- range $key := list "env" "secretEnv" -}}
{{- range $name, $given := get $.said $key | default dict -}}
{{- $value := include "ddp-job.text" $given -}}
{{- if not (regexMatch (printf "^%s$" $.shapes.patterns.variable) $name) -}}
{{- fail (printf "%s: '%s' is no environment variable." $key $name) -}}
{{- end -}}
{{- if eq $key "secretEnv" -}}
{{- $value = dict "shapes" $.shapes "key" (printf "secretEnv.%s" $name) "text" $value | include "ddp-job.secretKey" | fromJson -}}
{{- end -}}
{{- $_ := set (get $.spec $key) $name $value -}}
{{- end -}}
{{- end -}}
{{- if not (hasKey .spec.env "OMP_NUM_THREADS") -}}
{{- $_ := set .spec.env "OMP_NUM_THREADS" (div (div .spec.millis 1000) .spec.nproc | max 1 | toString) -}}
{{- end -}}
{{- end -}}
