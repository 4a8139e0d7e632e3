{{/* What a layout demands of the reference trainer's GPT: ddp_trainer.common.model_constraints and the plugin's spec.reference_model, in their words. */}}

{{/* The last value of a flag of the reference trainer's, as {isSaid, text}; the arguments of other programs are their own. */}}
{{- define "ddp-job.argument" -}}
{{- $spec := .job.spec -}}
{{- $flag := .flag -}}
{{- $said := dict "isSaid" false "text" "" -}}
{{- if and (eq $spec.program "module") (eq (splitList "." (default "" $spec.module) | first) .job.c.trainer) -}}
{{- range $place, $word := $spec.args -}}
{{- if eq $word $flag -}}
{{- $isLast := ge (add1 $place) (len $spec.args | int64) -}}
{{- $said = dict "isSaid" true "text" (ternary "" (index $spec.args (min (add1 $place) (sub (len $spec.args) 1) | int)) $isLast) -}}
{{- else if hasPrefix (printf "%s=" $flag) $word -}}
{{- $said = dict "isSaid" true "text" (trimPrefix (printf "%s=" $flag) $word) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $said -}}
{{- end -}}

{{/* Words of the reference trainer's: ddp_trainer.common.enums. */}}
{{- define "ddp-job.wordsAreTheTrainers" -}}
{{- $job := . -}}
{{- range .c.renamed -}}
{{- if (dict "job" $job "flag" .flag | include "ddp-job.argument" | fromJson).isSaid -}}{{- fail .sentence -}}{{- end -}}
{{- end -}}
{{- range .c.choices -}}
{{- $said := dict "job" $job "flag" .flag | include "ddp-job.argument" | fromJson -}}
{{- if and $said.isSaid (not (has $said.text .words)) -}}
{{- fail (printf "The trainer has no %s '%s'. Give %s or %s." .flag $said.text (initial .words | join ", ") (last .words)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The model as {layers, heads, globalBatch, batchSlices, microBatch, schedule}; {} where another one is trained, or none can be. */}}
{{- define "ddp-job.ownGpt" -}}
{{- $job := . -}}
{{- $own := .c.ownGpt -}}
{{- $said := dict -}}
{{- range $key, $flag := $own.flags -}}
{{- $_ := dict "job" $job "flag" $flag | include "ddp-job.argument" | fromJson | set $said $key -}}
{{- end -}}
{{- $model := $said.model.text | default $own.model -}}
{{- $gpt := dict "schedule" ($said.schedule.text | default $own.schedule) -}}
{{- $isOurs := and (eq $said.task.text $own.task) (eq (splitList ":" $model | first) $own.model) (hasKey $own.schedules $gpt.schedule) -}}
{{- range $key, $size := $own.sizes -}}
{{- $_ := set $gpt $key $size -}}
{{- end -}}
{{- range $part := trimPrefix (printf "%s:" $own.model) $model | splitList "," -}}
{{- $key := splitList "=" $part | first -}}
{{- if hasKey $own.sizes $key -}}
{{- $value := trimPrefix (printf "%s=" $key) $part -}}
{{- if not (regexMatch $own.whole $value) -}}{{- $isOurs = false -}}{{- end -}}
{{- $_ := atoi $value | set $gpt $key -}}
{{- end -}}
{{- end -}}
{{- range $key := list "globalBatch" "batchSlices" "microBatch" -}}
{{- $given := get $said $key -}}
{{- if and $given.isSaid (not (regexMatch $own.whole $given.text)) -}}{{- $isOurs = false -}}{{- end -}}
{{- $_ := atoi $given.text | set $gpt $key -}}
{{- end -}}
{{- $_ := $gpt.globalBatch | default $own.globalBatch | set $gpt "globalBatch" -}}
{{- ternary $gpt dict $isOurs | toJson -}}
{{- end -}}

{{/* Where a part begins of so many among which a length is divided; longer ones come first, by at most one. */}}
{{- define "ddp-job.start" -}}
{{- add (div .length .parts | mul .part) (mod .length .parts | min .part) -}}
{{- end -}}

{{- define "ddp-job.modelFitsTheLayout" -}}
{{- if hasKey . "spans" -}}
{{- $job := . -}}
{{- $gpt := include "ddp-job.ownGpt" . | fromJson -}}
{{- if $gpt -}}
{{- range .byNodes -}}
{{- $the := "The" -}}
{{- $with := "" -}}
{{- $or := "" -}}
{{- if lt $job.spec.least $job.spec.most -}}
{{- $with = printf "With %d of nnodes %s, " .nodes $job.spec.nnodes -}}
{{- $the = printf "%sthe" $with -}}
{{- $or = " Or narrow nnodes, or the sizes of the layout." -}}
{{- end -}}
{{- dict "job" $job "gpt" $gpt "layout" .layout "the" $the "with" $with "or" $or | include "ddp-job.slicesAndStagesFit" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ddp-job.slicesAndStagesFit" -}}
{{- $gpt := .gpt -}}
{{- $tp := int64 .layout.tp -}}
{{- $pp := int64 .layout.pp -}}
{{- $sizes := list (dict "name" "number of heads" "size" $gpt.heads) (dict "name" "vocabulary" "size" .job.c.ownGpt.vocabulary) -}}
{{- range $sizes -}}
{{- if mod .size $tp -}}
{{- fail (printf "%s model's %s is %d, which tp=%d ranks cannot share evenly. Give a tp that divides %d.%s" $.the .name (int64 .size) $tp (int64 .size) $.or) -}}
{{- end -}}
{{- end -}}
{{- if gt $pp 1 -}}
{{- $asks := get .job.c.ownGpt.schedules $gpt.schedule -}}
{{- $stages := mul $pp $asks.stagesPerRank -}}
{{- if gt $stages (int64 $gpt.layers) -}}
{{- fail (printf "%s model's layers are %d, which cannot fill %d stages of a pipeline. Give a pp of at most %d, half of that with two stages on each rank.%s" .the (int64 $gpt.layers) $stages (int64 $gpt.layers) .or) -}}
{{- end -}}
{{- dict "gpt" $gpt "asks" $asks "pp" $pp "parts" (mul .layout.replicate .layout.shard) "most" (mul .job.spec.most .job.spec.nproc) "with" .with "or" .or | include "ddp-job.microBatchesFit" -}}
{{- end -}}
{{- end -}}

{{/* Micro-batches of a step, in each part of a batch: those of its run of batch slices. */}}
{{- define "ddp-job.microBatchesFit" -}}
{{- $job := . -}}
{{- $gpt := .gpt -}}
{{- $batch := int64 $gpt.globalBatch -}}
{{- $slices := int64 $gpt.batchSlices -}}
{{- if not $slices -}}
{{- $slices = 1 -}}
{{- range until 63 -}}{{- if lt $slices (max $job.most $job.parts) -}}{{- $slices = mul $slices 2 -}}{{- end -}}{{- end -}}
{{- $slices = min $slices $batch -}}
{{- end -}}
{{- range $part := untilStep 0 (ternary .parts 0 (le .parts $slices) | int) 1 -}}
{{- $first := dict "length" $slices "parts" $job.parts "part" $part | include "ddp-job.start" | atoi -}}
{{- $beyond := dict "length" $slices "parts" $job.parts "part" (add1 $part) | include "ddp-job.start" | atoi -}}
{{- $from := dict "length" $batch "parts" $slices "part" $first | include "ddp-job.start" | atoi -}}
{{- $samples := sub (dict "length" $batch "parts" $slices "part" $beyond | include "ddp-job.start" | atoi) $from -}}
{{- $size := ternary (min $gpt.microBatch $samples) (div $samples (mul 4 $job.pp)) (gt (int64 $gpt.microBatch) 0) | max 1 -}}
{{- $count := div (add $samples $size -1) $size -}}
{{- if and $job.asks.fills (lt $count $job.pp) -}}
{{- fail (printf "%s--pipeline-schedule %s needs at least %d micro-batches for %d stages, and a step has %d. Give a smaller --micro-batch, a larger --global-batch, or --pipeline-schedule gpipe.%s" $job.with $gpt.schedule $job.pp $job.pp $count $job.or) -}}
{{- end -}}
{{- if and $job.asks.inRounds (gt $count $job.pp) (mod $count (div $count $job.pp)) -}}
{{- fail (printf "%s--pipeline-schedule %s takes micro-batches in equal rounds over %d ranks, and a step has %d. Give a --micro-batch that makes them a multiple of %d.%s" $job.with $gpt.schedule $job.pp $count $job.pp $job.or) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Options that go with no layout, or not with the job's: ddp_trainer.common.option_conflicts, in its words. */}}
{{- define "ddp-job.optionsFitTheLayout" -}}
{{- $job := . -}}
{{- $own := dict "job" . "flag" "--parallel" | include "ddp-job.argument" | fromJson -}}
{{- $isTrainer := and (eq .spec.program "module") (eq (splitList "." (default "" .spec.module) | first) .c.trainer) -}}
{{- if and $isTrainer (or (hasKey . "spans") (not $own.isSaid)) -}}
{{- $most := dict "shard" 1 "tp" 1 "pp" 1 -}}
{{- range $name, $span := .spans | default dict -}}{{- $_ := set $most $name (int $span.most) -}}{{- end -}}
{{- $is := dict "unsharded" (eq (int $most.shard) 1) "pp" (gt (int $most.pp) 1) "tp" (gt (int $most.tp) 1) -}}
{{- $_ := set $is "spread" (gt (mul $most.shard $most.tp $most.pp) 1) -}}
{{- range $clash := .c.clashes -}}
{{- $isSo := get $is $clash.where -}}
{{- $value := "" -}}
{{- range $place, $word := $clash.words -}}
{{- if $word.isSwitch -}}
{{- $isOn := false -}}
{{- range $job.spec.args -}}
{{- if has . (list $word.flag ($word.flag | replace "--no-" "--")) -}}{{- $isOn = eq . $word.flag -}}{{- end -}}
{{- end -}}
{{- if not $isOn -}}{{- $isSo = false -}}{{- end -}}
{{- else -}}
{{- $said := dict "job" $job "flag" $word.flag | include "ddp-job.argument" | fromJson -}}
{{- if eq $place 0 -}}{{- $value = $said.text -}}{{- end -}}
{{- if not (and $said.isSaid (ternary (eq $said.text $word.value) (ne $said.text $word.but) (ne $word.value ""))) -}}{{- $isSo = false -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if $isSo -}}
{{- fail (printf "%s %s" ($clash.sentence | replace "{parallel}" ($job.spec.parallel | default "not given") | replace "{value}" $value) $clash.help) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
