{{/* What must hold between the values: the rules of the plugin, in its words. */}}

{{- define "ddp-job.rules" -}}
{{- include "ddp-job.placeIsTheReleases" . -}}
{{- include "ddp-job.nameFits" . -}}
{{- include "ddp-job.sharedMemoryFits" . -}}
{{- include "ddp-job.gpusFit" . -}}
{{- include "ddp-job.variablesAreFree" . -}}
{{- include "ddp-job.secretsAreKept" . -}}
{{- include "ddp-job.secretHasAName" . -}}
{{- include "ddp-job.wordsAreTheTrainers" . -}}
{{- include "ddp-job.layoutIsSaidOnce" . -}}
{{- include "ddp-job.layoutFits" . -}}
{{- include "ddp-job.replicasCanBeKeptTogether" . -}}
{{- include "ddp-job.batchFeedsTheWorld" . -}}
{{- include "ddp-job.modelFitsTheLayout" . -}}
{{- include "ddp-job.optionsFitTheLayout" . -}}
{{- include "ddp-job.timeIsEnough" . -}}
{{- include "ddp-job.topologyIsSaidOnce" . -}}
{{- include "ddp-job.pathsAreFree" . -}}
{{- include "ddp-job.gangHasAQueue" . -}}
{{- include "ddp-job.fabricFits" . -}}
{{- end -}}

{{/* Helm keeps a release in one namespace, so its objects belong there. */}}
{{- define "ddp-job.placeIsTheReleases" -}}
{{- if and .spec.namespace (ne .spec.namespace .root.Release.Namespace) -}}
{{- fail (printf "namespace: the values say '%s', and the release is in '%s'. Install it with --namespace %s, or leave namespace out." .spec.namespace .root.Release.Namespace .spec.namespace) -}}
{{- end -}}
{{- end -}}

{{- define "ddp-job.nameFits" -}}
{{- $ofWorker := printf .c.podOfJobSet (sub .spec.most 1) | len -}}
{{- $room := sub .c.nameLength (max $ofWorker (len .c.storePodSuffix)) -}}
{{- $excess := sub (len .spec.name) $room -}}
{{- if gt $excess 0 -}}
{{- fail (printf "The name '%s' is %d %s too long: the names of its pods would not fit %d characters. Use at most %d." .spec.name $excess (ternary "character" "characters" (eq $excess 1)) (int .c.nameLength) $room) -}}
{{- end -}}
{{- end -}}

{{- define "ddp-job.secretHasAName" -}}
{{- with .root.Values.runSecret -}}
{{- if not (regexMatch (printf "^%s$" $.shapes.patterns.subdomain) .) -}}
{{- fail (printf "runSecret: '%s' is no name of an object. Use lower case letters, digits, '-' and '.'." .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ddp-job.sharedMemoryFits" -}}
{{- if ge .spec.shmBytes .spec.memoryBytes -}}
{{- fail (printf "Shared memory is charged to the memory of its node: shm %s leaves nothing of %s. Lower shm, or raise memory above %s." .spec.shm .spec.memory .spec.shm) -}}
{{- end -}}
{{- end -}}

{{- define "ddp-job.gpusFit" -}}
{{- $spec := .spec -}}
{{- if and $spec.mig (or (gt $spec.gpus 1) (gt $spec.nproc 1)) -}}
{{- $what := ternary "nproc" "gpus" (gt $spec.nproc 1) -}}
{{- fail (printf "A node of MIG slices has one process and one slice, and %s is %d: NCCL before 2.30 does not join slices of one GPU. Leave %s out and ask for more nodes, or for whole GPUs without mig." $what (get $spec $what) $what) -}}
{{- end -}}
{{- if and (gt $spec.gpus 0) (lt $spec.gpus $spec.nproc) -}}
{{- fail (printf "%d processes cannot share %d %s: NCCL before 2.30 refuses two ranks on one. Set nproc to %d, or leave it out." $spec.nproc $spec.gpus (ternary "GPU" "GPUs" (eq $spec.gpus 1)) $spec.gpus) -}}
{{- end -}}
{{- if $spec.gpuType -}}
{{- if eq $spec.gpus 0 -}}
{{- fail (printf "gpuType is '%s', and the job asks for no GPU. Add gpus, or leave it." $spec.gpuType) -}}
{{- end -}}
{{- $said := get $spec.nodeSelector .c.gpuProduct | default $spec.gpuType -}}
{{- if ne $said $spec.gpuType -}}
{{- fail (printf "gpuType says '%s', and nodeSelector says '%s'. Keep one of them." $spec.gpuType $said) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ddp-job.variablesAreFree" -}}
{{- $taken := .c.variables -}}
{{- range $name := concat (keys .spec.env) (keys .spec.secretEnv) | sortAlpha -}}
{{- $isTaken := has $name $taken.taken -}}
{{- range $taken.prefixes -}}{{- if hasPrefix . $name -}}{{- $isTaken = true -}}{{- end -}}{{- end -}}
{{- if and $isTaken (not (has $name $taken.free)) -}}
{{- fail (printf "The environment variable %s is set by the launcher for each rank. Leave it out, or rename it." $name) -}}
{{- end -}}
{{- if and (hasKey $.spec.env $name) (hasKey $.spec.secretEnv $name) -}}
{{- fail (printf "The environment variable %s is given twice, in env and in secretEnv. Keep one." $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Nobody repeats a value here: it may be a secret. */}}
{{- define "ddp-job.secretsAreKept" -}}
{{- $c := .c.secret -}}
{{- $is := "looks like a secret, and everyone who may read the job can read it. Keep it in a Secret" -}}
{{- $else := "What is none, and only looks like one, may come from a ConfigMap: envFrom: [configmap/NAME]." -}}
{{- range $name, $value := .spec.env -}}
{{- if or (regexMatch $c.form $value) (and (regexMatch $c.variable $name) (not (regexMatch $c.harmless (lower $value)))) -}}
{{- fail (printf "The value of %s %s: secretEnv: {%s: SECRET:KEY}. %s" $name $is $name $else) -}}
{{- end -}}
{{- end -}}
{{- $before := "" -}}
{{- range $place, $word := concat (.spec.command | default list) .spec.args -}}
{{- $flag := splitList "=" $word | first -}}
{{- $value := trimPrefix (printf "%s=" $flag) $word -}}
{{- $joined := and (contains "=" $word) (regexMatch $c.flag $flag) (not (regexMatch $c.harmless (lower $value))) -}}
{{- $after := and (regexMatch $c.flag $before) (not (hasPrefix "-" $word)) (not (regexMatch $c.harmless (lower $word))) -}}
{{- if or $joined $after (regexMatch $c.form $word) -}}
{{- fail (printf "%s %s, give it to the pods with secretEnv: {NAME: SECRET:KEY}, and read the variable. %s" (ternary (printf "The value of %s" (ternary $flag $before $joined)) (printf "Word %d of the program" (add1 $place)) (or $joined $after)) $is $else) -}}
{{- end -}}
{{- $before = $word -}}
{{- end -}}
{{- end -}}

{{/* Of the reference trainer's arguments; those of other programs are their own. */}}
{{- define "ddp-job.batchFeedsTheWorld" -}}
{{- $nodes := .spec.most -}}
{{- $eaters := mul .spec.most .spec.nproc -}}
{{- $who := printf "%d ranks" $eaters -}}
{{- if hasKey . "spans" -}}
{{- $eaters = 0 -}}
{{- range .byNodes -}}
{{- $parts := mul .layout.replicate .layout.shard -}}
{{- if gt $parts $eaters -}}{{- $eaters = $parts -}}{{- $nodes = .nodes -}}{{- end -}}
{{- end -}}
{{- $who = printf "the %d replicas and shards of '%s'" $eaters .spec.parallel -}}
{{- end -}}
{{- range $flag := list "--global-batch" "--batch-slices" -}}
{{- $what := ternary "sample" "slice" (eq $flag "--global-batch") -}}
{{- $said := dict "job" $ "flag" $flag | include "ddp-job.argument" | fromJson -}}
{{- $count := ternary $said.text "-1" (regexMatch "^[0-9]{1,18}$" $said.text) | int64 -}}
{{- if and (ge $count 0) (lt $count $eaters) -}}
{{- fail (printf "A batch of %d %s%s cannot feed %s (%d %s of %d %s). Raise %s to %d or more, or ask for fewer nodes or processes." $count $what (ternary "" "s" (eq $count 1)) $who $nodes (ternary "node" "nodes" (eq (int $nodes) 1)) $.spec.nproc (ternary "process" "processes" (eq $.spec.nproc 1)) $flag $eaters) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ddp-job.timeIsEnough" -}}
{{- if lt .spec.grace (int64 .c.leastGrace) -}}
{{- fail (printf "%d seconds of grace are too few to finish a step and save. Use %d or more." .spec.grace (int64 .c.leastGrace)) -}}
{{- end -}}
{{- if and (hasKey .spec "deadline") (eq (default 0 .spec.deadline | int64) 0) -}}
{{- fail "A deadline of 0 seconds would stop the job before it starts. Leave it out for none." -}}
{{- end -}}
{{- end -}}

{{- define "ddp-job.topologyIsSaidOnce" -}}
{{- $seen := list -}}
{{- range $wish := .spec.topology -}}
{{- $said := printf "%s=%s" $wish.placement $wish.key -}}
{{- if has $said $seen -}}
{{- fail (printf "The topology '%s' is given twice. Keep one of them." $said) -}}
{{- end -}}
{{- $seen = append $seen $said -}}
{{- end -}}
{{- end -}}

{{- define "ddp-job.pathsAreFree" -}}
{{- $seen := dict -}}
{{- range $volume := concat .spec.mounts .spec.secrets -}}
{{- range $taken := $.c.paths.ours -}}
{{- if or (eq $volume.path $taken) (hasPrefix (printf "%s/" $taken) $volume.path) -}}
{{- fail (printf "The mount '%s' is in the way of %s, which every job has. Choose another path." $volume.text $taken) -}}
{{- end -}}
{{- end -}}
{{- if hasKey $seen $volume.path -}}
{{- fail (printf "The mounts '%s' and '%s' have the same path. Keep one of them." (get $seen $volume.path) $volume.text) -}}
{{- end -}}
{{- $_ := set $seen $volume.path $volume.text -}}
{{- end -}}
{{- end -}}

{{- define "ddp-job.gangHasAQueue" -}}
{{- if and (eq .spec.gang "kueue") (not .spec.queue) -}}
{{- fail "Kueue starts nothing that is in no queue. Add queue: NAME, a LocalQueue." -}}
{{- end -}}
{{- if and (eq .spec.gang "scheduler-plugins") .spec.queue -}}
{{- fail (printf "The scheduler plugins have no queues, and the queue is '%s'. Leave one of them out." .spec.queue) -}}
{{- end -}}
{{- if and .spec.queuePriority (not .isKueues) -}}
{{- fail (printf "The queue priority '%s' is a class of Kueue's, and the job is in no queue of Kueue's. Add queue: NAME, or leave queuePriority out; priority is Kubernetes' own class." .spec.queuePriority) -}}
{{- end -}}
{{- end -}}

{{- define "ddp-job.fabricFits" -}}
{{- $spec := .spec -}}
{{- range $name := ternary list (splitList "+" $spec.fabric) (eq $spec.fabric "none") -}}
{{- $profile := get $.fabrics.profiles $name -}}
{{- if and $profile.hasGpus (eq $spec.gpus 0) -}}
{{- fail (printf "The fabric %s joins GPUs, and the job asks for none. Add gpus, or leave fabric out." $name) -}}
{{- end -}}
{{- if and (not $profile.hasGpus) (gt $spec.gpus 0) -}}
{{- fail (printf "The fabric %s is for jobs without GPUs, and this one asks for %d per node. Leave one of them out." $name $spec.gpus) -}}
{{- end -}}
{{- if and $profile.largest (gt $spec.most (int64 $profile.largest)) -}}
{{- fail (printf "The fabric %s ends at one machine, and the job may have %d nodes. Name the network between the machines, or leave fabric out." $name $spec.most) -}}
{{- end -}}
{{- if and $profile.devices (gt $spec.most 1) -}}
{{- if not $spec.rdma -}}
{{- fail (printf "The fabric %s needs RDMA devices, and the job asks for none. %s" $name $profile.askFor) -}}
{{- end -}}
{{- $isOfIt := false -}}
{{- range $profile.devices -}}{{- if hasPrefix . $spec.rdma.resource -}}{{- $isOfIt = true -}}{{- end -}}{{- end -}}
{{- if not $isOfIt -}}
{{- fail (printf "rdma asks for '%s', which is no device of the fabric %s. %s" $spec.rdma.resource $name $profile.askFor) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
