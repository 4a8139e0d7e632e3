{{/* How the ranks share one model: what ddp_trainer.common.parallel_dims reads, and the rules of the plugin's spec, in its words. */}}

{{/* Text becomes its canonical form and the bounds of each dimension, as JSON. */}}
{{- define "ddp-job.layouts" -}}
{{- $key := .key -}}
{{- $text := .text -}}
{{- $spans := dict -}}
{{- range $part := splitList "," $text -}}
{{- if not (contains "=" $part) -}}
{{- fail (printf "%s: '%s' is no layout; write dimension=size with commas, as in replicate=2,shard=4." $key $text) -}}
{{- end -}}
{{- $name := splitList "=" $part | first | trim -}}
{{- $size := trimPrefix (printf "%s=" (splitList "=" $part | first)) $part | trim -}}
{{- if not (has $name $.layout.dimensions) -}}
{{- fail (printf "%s: '%s' is no dimension of a layout; use replicate, shard, tp and pp, as in replicate=2,shard=4." $key $name) -}}
{{- end -}}
{{- if hasKey $spans $name -}}
{{- fail (printf "%s: '%s' names %s twice; name it once." $key $text $name) -}}
{{- end -}}
{{- $least := splitList ":" $size | first -}}
{{- $most := trimPrefix (printf "%s:" $least) $size -}}
{{- range list $least $most -}}
{{- if or (not (regexMatch "^[0-9]{1,7}$" .)) (lt (atoi .) 1) (gt (atoi .) (int $.layout.most)) -}}
{{- fail (printf "%s: %s=%s is no size of a dimension; give a whole number from 1 to %d, as %s=2." $key $name $size (int $.layout.most) $name) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $spans $name (dict "least" (atoi $least) "most" (atoi $most)) -}}
{{- end -}}
{{- $parts := list -}}
{{- $kinds := 1 -}}
{{- range $name := .layout.dimensions -}}
{{- $span := get $spans $name | default (dict "least" 1 "most" 1) -}}
{{- $_ := set $spans $name $span -}}
{{- if gt $span.least $span.most -}}
{{- fail (printf "%s: %s=%d:%d begins above its end; write %s=%d:%d." $key $name $span.least $span.most $name $span.most $span.least) -}}
{{- end -}}
{{- if lt $span.least $span.most -}}
{{- $parts = printf "%s=%d:%d" $name $span.least $span.most | append $parts -}}
{{- else if gt $span.most 1 -}}
{{- $parts = printf "%s=%d" $name $span.most | append $parts -}}
{{- end -}}
{{- if ne $name "replicate" -}}{{- $kinds = sub $span.most $span.least | add1 | mul $kinds -}}{{- end -}}
{{- end -}}
{{- $canonical := join "," $parts | default "replicate=1" -}}
{{- if gt $kinds (int64 .layout.mostReplicas) -}}
{{- fail (printf "%s: %s allows %d kinds of replica; narrow shard, tp and pp to %d." $key $canonical $kinds (int .layout.mostReplicas)) -}}
{{- end -}}
{{- dict "text" $canonical "spans" $spans | toJson -}}
{{- end -}}

{{- define "ddp-job.layout" -}}
{{- if hasKey .said "parallel" -}}
{{- if eq .said.parallel "auto" -}}
{{- fail "parallel: 'auto' asks for a plan, which 'kubectl ddp submit' makes and a chart cannot. Write the layout that 'kubectl ddp plan' names." -}}
{{- end -}}
{{- $layouts := dict "key" "parallel" "text" .said.parallel "layout" .c.layout | include "ddp-job.layouts" | fromJson -}}
{{- $_ := set .spec "parallel" $layouts.text -}}
{{- $_ := set . "spans" $layouts.spans -}}
{{- end -}}
{{- end -}}

{{/* The reference trainer obeys a layout among its own arguments, and pods are placed by the job's. */}}
{{- define "ddp-job.layoutIsSaidOnce" -}}
{{- $own := dict "job" . "flag" "--parallel" | include "ddp-job.argument" | fromJson -}}
{{- if $own.isSaid -}}
{{- $theirs := dict "key" "--parallel of the program" "text" $own.text "layout" .c.layout | include "ddp-job.layouts" | fromJson -}}
{{- if and (hasKey . "spans") (ne $theirs.text .spec.parallel) -}}
{{- fail (printf "The job has --parallel %s, and its program --parallel %s. Keep one." .spec.parallel $theirs.text) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The layout that so many ranks choose: most ranks, then largest replica, then most shards, then most stages. */}}
{{- define "ddp-job.chosen" -}}
{{- $spans := .spans -}}
{{- $world := int .world -}}
{{- $best := dict "world" 0 "replica" 0 "shard" 0 "pp" 0 "tp" 0 "replicate" 0 -}}
{{- range $tp := untilStep (int $spans.tp.least) (min $spans.tp.most $world | add1 | int) 1 -}}
{{- range $pp := untilStep (int $spans.pp.least) (min $spans.pp.most (div $world $tp) | add1 | int) 1 -}}
{{- range $shard := untilStep (int $spans.shard.least) (min $spans.shard.most (div $world (mul $tp $pp)) | add1 | int) 1 -}}
{{- $replica := mul $tp $pp $shard -}}
{{- $replicate := min $spans.replicate.most (div $world $replica) -}}
{{- if ge $replicate (int64 $spans.replicate.least) -}}
{{- $taken := mul $replicate $replica -}}
{{- $isBetter := gt $taken $best.world -}}
{{- if eq $taken $best.world -}}
{{- $isBetter = or (gt $replica $best.replica) (and (eq $replica $best.replica) (or (gt $shard $best.shard) (and (eq $shard $best.shard) (gt $pp $best.pp)))) -}}
{{- end -}}
{{- if $isBetter -}}
{{- $best = dict "world" $taken "replica" $replica "shard" $shard "pp" $pp "tp" $tp "replicate" $replicate -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $best -}}
{{- end -}}

{{/* The layouts for the most nodes, for those that are reached first as nodes are lost, and for the fewest. */}}
{{- define "ddp-job.layoutsByNodes" -}}
{{- $job := . -}}
{{- $most := int64 .spec.most -}}
{{- $least := int64 .spec.least -}}
{{- $counts := list $most -}}
{{- range untilStep (sub $most 1 | int) (sub $most (add1 .c.layout.mostLookedAt) | max $least | int) -1 -}}
{{- $counts = append $counts . -}}
{{- end -}}
{{- if lt $least $most -}}{{- $counts = append $counts $least -}}{{- end -}}
{{- $found := list -}}
{{- range $nodes := $counts -}}
{{- $layout := dict "spans" $job.spans "world" (mul $nodes $job.spec.nproc) | include "ddp-job.chosen" | fromJson -}}
{{- $found = dict "nodes" (int64 $nodes) "layout" $layout | append $found -}}
{{- end -}}
{{- $_ := set . "byNodes" $found -}}
{{- end -}}

{{- define "ddp-job.layoutFits" -}}
{{- if hasKey . "spans" -}}
{{- $spec := .spec -}}
{{- $processes := printf "%d %s" $spec.nproc (ternary "process" "processes" (eq $spec.nproc 1)) -}}
{{- if and (lt $spec.least $spec.most) (not (contains ":" $spec.parallel)) -}}
{{- $fixed := 1 -}}
{{- range .spans -}}{{- $fixed = mul $fixed .most -}}{{- end -}}
{{- fail (printf "nnodes %s lets the number of ranks change, and parallel '%s' always takes %d. Let a dimension change with it, as in replicate=1:4, or fix nnodes." $spec.nnodes $spec.parallel $fixed) -}}
{{- end -}}
{{- include "ddp-job.layoutsByNodes" . -}}
{{- range list (first .byNodes) (last .byNodes) -}}
{{- $nodes := .nodes -}}
{{- $world := mul $nodes $spec.nproc -}}
{{- if ne (int64 .layout.world) $world -}}
{{- fail (printf "parallel '%s' has no layout of %d %s, which %d %s of %s make. Change one of them: the product of the sizes is that of nnodes and nproc." $spec.parallel $world (ternary "rank" "ranks" (eq $world 1)) $nodes (ternary "node" "nodes" (eq $nodes 1)) $processes) -}}
{{- end -}}
{{- end -}}
{{- range $tp := untilStep (int .spans.tp.least) (max .spans.tp.least (add1 $spec.nproc) | min .spans.tp.most | add1 | int) 1 -}}
{{- if mod $spec.nproc $tp -}}
{{- fail (printf "parallel '%s' allows tp=%d, and a node has %s: slices of a tensor stay in a pod. Give a tp that divides nproc, or change nproc." $spec.parallel $tp $processes) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Kueue alone keeps some of a job's pods together, and by their number. */}}
{{- define "ddp-job.replicasCanBeKeptTogether" -}}
{{- $spec := .spec -}}
{{- $wishes := list -}}
{{- range $spec.topology -}}{{- if eq .placement "replica" -}}{{- $wishes = append $wishes . -}}{{- end -}}{{- end -}}
{{- if $wishes -}}
{{- $wish := first $wishes -}}
{{- if gt (len $wishes) 1 -}}
{{- fail (printf "A replica is kept in one domain, and the topology names %s and %s. Keep one of them." $wish.key (index $wishes 1).key) -}}
{{- end -}}
{{- if ne $spec.gang "kueue" -}}
{{- fail (printf "The topology '%s' keeps the pods of a replica together, which Kueue alone does, and the gang is '%s'. Add --gang kueue and --queue NAME, or use pack, which is for the whole job." $wish.text $spec.gang) -}}
{{- end -}}
{{- if not (hasKey . "spans") -}}
{{- fail (printf "The topology '%s' keeps the pods of a replica together, and nothing says what a replica is. Add --parallel." $wish.text) -}}
{{- end -}}
{{- $packs := list -}}
{{- range $spec.topology -}}{{- if eq .placement "pack" -}}{{- $packs = append $packs .key -}}{{- end -}}{{- end -}}
{{- with $packs -}}
{{- $narrower := dict "topology.kubernetes.io/region" (list) "topology.kubernetes.io/zone" (list "topology.kubernetes.io/region") -}}
{{- $isHost := and (eq (first .) "kubernetes.io/hostname") (ne $wish.key "kubernetes.io/hostname") -}}
{{- if or $isHost (has $wish.key (get $narrower (first .) | default list)) -}}
{{- fail (printf "The topology packs the whole job by %s, which is narrower than %s, where it keeps each replica, and Kueue admits no such job. Pack by a wider level, or leave pack out." (first .) $wish.key) -}}
{{- end -}}
{{- end -}}
{{- $replica := int64 (first .byNodes).layout.replica -}}
{{- if mod $replica $spec.nproc -}}
{{- fail (printf "The topology '%s' keeps the pods of a replica together, and a replica of parallel '%s' is %d %s where a pod has %d. Use an nproc that divides a replica." $wish.text $spec.parallel $replica (ternary "rank" "ranks" (eq $replica 1)) $spec.nproc) -}}
{{- end -}}
{{- range .byNodes -}}
{{- $other := int64 .layout.replica -}}
{{- if ne $other $replica -}}
{{- fail (printf "The topology '%s' keeps the pods of a replica together, and a replica of parallel '%s' is %d %s with %d %s and %d with %d. Let only replicate change." $wish.text $spec.parallel $other (ternary "rank" "ranks" (eq $other 1)) .nodes (ternary "node" "nodes" (eq .nodes 1)) $replica $spec.most) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What is legal about a layout and probably not meant, for the notes. */}}
{{- define "ddp-job.layoutWarnings" -}}
{{- if hasKey . "spans" }}
{{- $spec := .spec }}
{{- $replica := int64 (first .byNodes).layout.replica }}
{{- if and (gt $spec.most 1) (mod $replica $spec.nproc) (mod $spec.nproc $replica) }}
- A replica of parallel '{{ $spec.parallel }}' is {{ $replica }} ranks, and a pod has {{ $spec.nproc }}: some pods have parts of two replicas, and losing one of them loses both. Use an nproc that divides a replica, or that replicas divide.
{{- end }}
{{- $isSaid := false }}
{{- range .byNodes }}
{{- if not $isSaid }}
{{- $spare := sub (mul .nodes $spec.nproc) .layout.world }}
{{- if $spare }}
{{- $isSaid = true }}
- With {{ .nodes }} of nnodes {{ $spec.nnodes }}, {{ $spare }} {{ ternary "rank" "ranks" (eq $spare 1) }} of parallel '{{ $spec.parallel }}' would have no place.
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
