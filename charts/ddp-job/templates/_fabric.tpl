{{/* The network between the GPUs: which one the job's words speak of, and what it sets where nobody has said anything. */}}

{{- define "ddp-job.fabric" -}}
{{- $name := .said.fabric | default "auto" -}}
{{- if eq $name "auto" -}}
{{- $name = include "ddp-job.chosenFabric" . -}}
{{- end -}}
{{- include "ddp-job.fabricIsKnown" (dict "fabrics" .fabrics "name" $name) -}}
{{- $_ := set .spec "fabric" $name -}}
{{- /* Chosen before they are set: what a fabric sets is no fact about the machines. */ -}}
{{- $entries := include "ddp-job.emitted" . | fromJsonArray -}}
{{- range $entry := $entries -}}
{{- if eq $entry.target "env" -}}
{{- if not (or (hasKey $.spec.env $entry.name) (hasKey $.spec.secretEnv $entry.name)) -}}
{{- $_ := set $.spec.env $entry.name $entry.value -}}
{{- end -}}
{{- else if eq $entry.target "nodeSelector" -}}
{{- if not (hasKey $.spec.nodeSelector $entry.name) -}}
{{- $_ := set $.spec.nodeSelector $entry.name $entry.value -}}
{{- end -}}
{{- else if and (eq $entry.key "rdma") (not (hasKey $.spec "rdma")) -}}
{{- $_ := set $.spec "rdma" (dict "shapes" $.shapes "key" "rdma" "text" $entry.value | include "ddp-job.rdma" | fromJson) -}}
{{- else if and (eq $entry.key "topology") (not (hasKey $.said "topology")) -}}
{{- $wishes := list -}}
{{- range $text := $entry.value -}}
{{- $wishes = dict "shapes" $.shapes "key" "topology" "text" $text | include "ddp-job.topology" | fromJson | append $wishes -}}
{{- end -}}
{{- $_ := set $.spec "topology" $wishes -}}
{{- else if and (eq $entry.key "networks") (not (hasKey $.said "networks")) -}}
{{- $_ := set $.spec "networks" $entry.value -}}
{{- end -}}
{{- end -}}
{{- $added := dict -}}
{{- range $target := .fabrics.targets -}}{{- $_ := set $added $target dict -}}{{- end -}}
{{- range $entry := include "ddp-job.emitted" . | fromJsonArray -}}
{{- if hasKey $added $entry.target -}}
{{- $_ := set (get $added $entry.target) $entry.name $entry.value -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "added" $added -}}
{{- end -}}

{{- define "ddp-job.fabricIsKnown" -}}
{{- $names := list -}}
{{- $between := list -}}
{{- if ne .name "none" -}}
{{- range $name := splitList "+" .name -}}
{{- if not (hasKey $.fabrics.profiles $name) -}}
{{- fail (printf "fabric: '%s' is no fabric. There are %s, auto, none." $name (keys $.fabrics.profiles | sortAlpha | join ", ")) -}}
{{- else if not (get $.fabrics.profiles $name).isBeside -}}
{{- $between = append $between $name -}}
{{- end -}}
{{- $names = append $names $name -}}
{{- end -}}
{{- if gt (len $between) 1 -}}
{{- fail (printf "fabric: '%s' names %s, and the nodes of a job have one of them." .name (join " and " $between)) -}}
{{- end -}}
{{- if lt (len (uniq $names)) (len $names) -}}
{{- fail (printf "fabric: '%s' names a fabric twice." .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The first of these that knows decides: no GPU, one node, the machine, the accelerator, the rack, the devices. */}}
{{- define "ddp-job.chosenFabric" -}}
{{- $choose := .fabrics.choose -}}
{{- $machine := get .spec.nodeSelector $choose.machine | default "" -}}
{{- $accelerator := get .spec.nodeSelector $choose.accelerator | default "" -}}
{{- $devices := "" -}}
{{- with .spec.rdma -}}{{- $devices = .resource -}}{{- end -}}
{{- $isWhole := false -}}
{{- range $choose.wholeMachines -}}{{- if eq (int64 .) $.spec.gpus -}}{{- $isWhole = true -}}{{- end -}}{{- end -}}
{{- $ofMachine := dict "choices" $choose.machines "word" $machine | include "ddp-job.firstMatch" -}}
{{- $ofDevices := dict "choices" $choose.devices "word" $devices | include "ddp-job.firstMatch" -}}
{{- $isRack := false -}}
{{- range $product := $choose.rackProducts -}}
{{- if contains $product (default "" $.spec.gpuType) -}}{{- $isRack = true -}}{{- end -}}
{{- end -}}
{{- if eq .spec.gpus 0 -}}gloo-cpu
{{- else if eq .spec.most 1 -}}single-node-nvlink
{{- else if and $isWhole $ofMachine -}}{{- $ofMachine -}}
{{- else if and $isWhole (hasKey $choose.accelerators $accelerator) -}}{{- get $choose.accelerators $accelerator -}}
{{- else if $isRack -}}{{- compact (list $choose.racks $ofDevices) | join "+" -}}
{{- else -}}{{- default "none" $ofDevices -}}
{{- end -}}
{{- end -}}

{{- define "ddp-job.firstMatch" -}}
{{- $found := "" -}}
{{- range $choice := .choices -}}
{{- if and (not $found) $.word (regexMatch $choice.pattern $.word) -}}{{- $found = $choice.fabric -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* The entries that the fabric sets on these machines, for the NCCL of the image, as JSON. */}}
{{- define "ddp-job.emitted" -}}
{{- $found := list -}}
{{- range include "ddp-job.ofMachine" . | fromJsonArray -}}{{- if not .isTooNew -}}{{- $found = append $found . -}}{{- end -}}{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* The version of NCCL that the image's name tells. */}}
{{- define "ddp-job.nccl" -}}
{{- regexFind "nccl[-_]?v?[0-9]+(\\.[0-9]+){1,2}" .spec.image | regexFind "[0-9].*$" -}}
{{- end -}}

{{/* The same, and the entries that a newer NCCL would have, as JSON. */}}
{{- define "ddp-job.ofMachine" -}}
{{- $nccl := dict "version" (include "ddp-job.nccl" . | splitList "." | compact) | include "ddp-job.sortable" -}}
{{- $machine := get .spec.nodeSelector .fabrics.choose.machine | default "" -}}
{{- $names := ternary list (splitList "+" .spec.fabric) (eq .spec.fabric "none") -}}
{{- $found := list -}}
{{- range $name := $names -}}
{{- range $entry := (get $.fabrics.profiles $name).entries -}}
{{- $fits := true -}}
{{- $isTooNew := false -}}
{{- if hasKey $entry "machines" -}}
{{- $fits = false -}}
{{- range $pattern := $entry.machines -}}{{- if regexMatch $pattern $machine -}}{{- $fits = true -}}{{- end -}}{{- end -}}
{{- end -}}
{{- if hasKey $entry "alone" -}}
{{- $fits = and $fits (eq $entry.alone (eq (len $names) 1)) -}}
{{- end -}}
{{- if hasKey $entry "before" -}}
{{- $fits = and $fits (ne $nccl "") (lt $nccl (dict "version" $entry.before | include "ddp-job.sortable")) -}}
{{- else if hasKey $entry "since" -}}
{{- $isTooNew = and (ne $nccl "") (lt $nccl (dict "version" $entry.since | include "ddp-job.sortable")) -}}
{{- end -}}
{{- if $fits -}}{{- $found = merge (dict "isTooNew" $isTooNew) $entry | append $found -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* The parts of a version as text that sorts as they do. */}}
{{- define "ddp-job.sortable" -}}
{{- range .version -}}{{- printf "%06d." (toString . | atoi) -}}{{- end -}}
{{- end -}}
