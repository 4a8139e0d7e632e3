{{/* One value at a time: text becomes what the plugin's parsers make of it, or a sentence says why not. Each takes
     (dict "c" constants "shapes" shapes "key" KEY "text" TEXT). */}}

{{/* A value of any type as text: numbers as they were written, as far as YAML has kept that. */}}
{{- define "ddp-job.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{- printf "%.0f" . -}}{{- else -}}{{- toString . -}}{{- end -}}
{{- end -}}

{{- define "ddp-job.words" -}}
{{- $words := list -}}
{{- range . -}}{{- $words = include "ddp-job.text" . | append $words -}}{{- end -}}
{{- toJson $words -}}
{{- end -}}

{{- define "ddp-job.matching" -}}
{{- $shape := get .shapes.texts .shape -}}
{{- if or (not (regexMatch $shape.pattern .text)) (and $shape.longest (gt (len .text) (int $shape.longest))) -}}
{{- fail (printf "%s: '%s' is %s. %s" .key .text $shape.what $shape.hint) -}}
{{- end -}}
{{- .text -}}
{{- end -}}

{{/* Memory as a number of bytes. Fractions are taken apart, since numbers here hold 64 bits and no more. */}}
{{- define "ddp-job.bytes" -}}
{{- if regexMatch "^[0-9]{1,19}(\\.[0-9]{1,9})?$" .text -}}
{{- fail (printf "%s: '%s' has no unit. Write it with one, for example '%sGi'." .key .text .text) -}}
{{- end -}}
{{- if not (regexMatch "^[0-9]{1,19}(\\.[0-9]{1,9})?(Ei|Pi|Ti|Gi|Mi|Ki|E|P|T|G|M|k)$" .text) -}}
{{- fail (printf "%s: '%s' is no amount of memory. Write it as '4Gi' or '512Mi'." .key .text) -}}
{{- end -}}
{{- $whole := regexFind "^[0-9]+" .text -}}
{{- $digits := regexFind "\\.[0-9]+" .text | trimPrefix "." -}}
{{- $unit := atoi (get .shapes.bytes (regexFind "[A-Za-z]*$" .text)) -}}
{{- $ten := include "ddp-job.power" (len $digits) | atoi -}}
{{- $fraction := atoi (default "0" $digits) -}}
{{- $rest := add (mul $fraction (div $unit $ten)) (div (mul $fraction (mod $unit $ten)) $ten) -}}
{{- $largest := atoi .shapes.largestBytes -}}
{{- $isLarge := and (eq (len $whole) 19) (gt $whole .shapes.largestBytes) -}}
{{- if not $isLarge -}}
{{- $isLarge = or (gt (atoi $whole) (div $largest $unit)) (lt (sub $largest (mul (atoi $whole) $unit)) $rest) -}}
{{- end -}}
{{- $bytes := add (mul (atoi $whole) $unit) $rest -}}
{{- if or $isLarge (lt $bytes 1) -}}
{{- fail (printf "%s: '%s' is no amount of memory that a machine has. Write it as '4Gi'." .key .text) -}}
{{- end -}}
{{- $bytes -}}
{{- end -}}

{{- define "ddp-job.power" -}}
1{{- range until . -}}0{{- end -}}
{{- end -}}

{{/* A number of bytes, with a unit and as short as it can be written exactly. */}}
{{- define "ddp-job.size" -}}
{{- $bytes := .bytes -}}
{{- $written := regexReplaceAll "\\.?0+k$" (printf "%d.%03dk" (div $bytes 1000) (mod $bytes 1000)) "k" -}}
{{- $found := false -}}
{{- range $suffix := .shapes.binary -}}
{{- $unit := atoi (get $.shapes.bytes $suffix) -}}
{{- if and (not $found) (eq (mod $bytes $unit) 0) -}}
{{- $written = printf "%d%s" (div $bytes $unit) $suffix -}}
{{- $found = true -}}
{{- end -}}
{{- end -}}
{{- $written -}}
{{- end -}}

{{/* Processor time in thousandths of a core. */}}
{{- define "ddp-job.millis" -}}
{{- $isWritten := regexMatch "^[0-9]{1,19}(\\.[0-9]{1,9})?m?$" .text -}}
{{- $whole := regexFind "^[0-9]+" .text -}}
{{- $digits := regexFind "\\.[0-9]+" .text | trimPrefix "." -}}
{{- $each := ternary 1 1000 (hasSuffix "m" .text) -}}
{{- $ten := include "ddp-job.power" (len $digits) | atoi -}}
{{- $fraction := mul (atoi (default "0" $digits)) $each -}}
{{- if or (not $isWritten) (ne (mod $fraction $ten) 0) -}}
{{- fail (printf "%s: '%s' is no number of cores. Write it as '4', '1.5' or '500m'." .key .text) -}}
{{- end -}}
{{- $millis := add (mul (atoi $whole) $each) (div $fraction $ten) -}}
{{- if or (gt (len (trimAll "0" $whole)) 10) (lt $millis 1) (gt $millis 1000000000) (lt (atoi $whole) 0) (gt (atoi $whole) 1000000000) -}}
{{- fail (printf "%s: '%s' is no number of cores that a machine has. Write it as '4' or '500m'." .key .text) -}}
{{- end -}}
{{- $millis -}}
{{- end -}}

{{- define "ddp-job.cores" -}}
{{- if eq (mod . 1000) 0 -}}{{- div . 1000 -}}{{- else -}}{{- printf "%dm" . -}}{{- end -}}
{{- end -}}

{{/* Nodes, "4" or "2:8", as JSON of both bounds. */}}
{{- define "ddp-job.nodes" -}}
{{- if not (regexMatch "^[0-9]{1,9}(:[0-9]{1,9})?$" .text) -}}
{{- fail (printf "%s: '%s' is no number of nodes. Write '4', or '2:8' for at least 2 and at best 8." .key .text) -}}
{{- end -}}
{{- $bounds := splitList ":" .text -}}
{{- $least := first $bounds | atoi -}}
{{- $most := last $bounds | atoi -}}
{{- if gt $least $most -}}
{{- fail (printf "%s: '%d:%d' asks for at least %d nodes and at most %d. Write the smaller number first: '%d:%d'." .key $least $most $least $most $most $least) -}}
{{- end -}}
{{- $largest := int .shapes.largestNodes -}}
{{- if or (lt $least 1) (gt $most $largest) -}}
{{- fail (printf "%s: '%s' is no number of nodes. A job has between 1 and %d nodes." .key .text $largest) -}}
{{- end -}}
{{- dict "least" $least "most" $most | toJson -}}
{{- end -}}

{{- define "ddp-job.seconds" -}}
{{- $isWritten := regexMatch "^[0-9]{1,10}[dhms]?$" .text -}}
{{- $seconds := mul (regexFind "^[0-9]{0,18}" .text | default "0" | atoi) (get .shapes.seconds (regexFind "[dhms]?$" .text) | int) -}}
{{- if or (not $isWritten) (gt $seconds 2147483647) -}}
{{- fail (printf "%s: '%s' is no duration. Write it as '90s', '2m', '1h' or '7d'." .key .text) -}}
{{- end -}}
{{- $seconds -}}
{{- end -}}

{{- define "ddp-job.toleration" -}}
{{- $p := .shapes.patterns -}}
{{- $effect := regexFind ":[A-Za-z0-9_]+$" .text | trimPrefix ":" -}}
{{- $isWritten := regexMatch (printf "^%s(=%s)?(:[A-Za-z0-9_]+)?$" $p.qualified $p.labelValue) .text -}}
{{- if or (not $isWritten) (and $effect (not (has $effect .shapes.effects))) -}}
{{- fail (printf "%s: '%s' is no taint. Write KEY, KEY=VALUE or KEY=VALUE:EFFECT, EFFECT one of %s." .key .text (join ", " .shapes.effects)) -}}
{{- end -}}
{{- $words := regexReplaceAll ":[A-Za-z0-9_]+$" .text "" | splitn "=" 2 -}}
{{- $value := default "" $words._1 -}}
{{- $text := printf "%s%s%s" $words._0 (ternary (printf "=%s" $value) "" (ne $value "")) (ternary (printf ":%s" $effect) "" (ne $effect "")) -}}
{{- dict "text" $text "key" $words._0 "value" $value "effect" $effect | toJson -}}
{{- end -}}

{{- define "ddp-job.secretKey" -}}
{{- if not (regexMatch (printf "^%s:[-._A-Za-z0-9]+$" .shapes.patterns.subdomain) .text) -}}
{{- fail (printf "%s: '%s' names no entry of a Secret. Write it as 'SECRET:KEY', as in 'hub:token'." .key .text) -}}
{{- end -}}
{{- $words := splitn ":" 2 .text -}}
{{- dict "text" .text "secret" $words._0 "key" $words._1 | toJson -}}
{{- end -}}

{{- define "ddp-job.envSource" -}}
{{- if not (regexMatch (printf "^(secret|configmap)/%s$" .shapes.patterns.subdomain) .text) -}}
{{- fail (printf "%s: '%s' names no source of variables. Write 'secret/NAME' or 'configmap/NAME'." .key .text) -}}
{{- end -}}
{{- $words := splitn "/" 2 .text -}}
{{- dict "text" .text "kind" $words._0 "name" $words._1 | toJson -}}
{{- end -}}

{{/* A path to mount at: absolute, and not one that hides the system's. */}}
{{- define "ddp-job.mountPath" -}}
{{- if or (not (hasPrefix "/" .text)) (has ".." (splitList "/" .text)) -}}
{{- fail (printf "%s: '%s' is no absolute path. Begin it with '/', as in '/data'." .key .text) -}}
{{- end -}}
{{- $path := clean .text -}}
{{- if has $path .c.paths.system -}}
{{- fail (printf "%s: A mount at '%s' would hide the image's own files. Choose a path such as '/data'." .key $path) -}}
{{- end -}}
{{- $path -}}
{{- end -}}

{{- define "ddp-job.mount" -}}
{{- $notation := "pvc=NAME:/PATH[:ro], configmap=NAME:/PATH or emptydir=SIZE:/PATH" -}}
{{- if not (regexMatch "^[A-Za-z]+=[^:]+:[^:]+(:[^:]*)?$" .text) -}}
{{- fail (printf "%s: '%s' mounts nothing. Write %s." .key .text $notation) -}}
{{- end -}}
{{- $source := regexFind "^[A-Za-z]+" .text -}}
{{- if eq (lower $source) "hostpath" -}}
{{- fail (printf "%s: '%s' asks for a directory of the machine, which Pod Security 'restricted' refuses. Put the data into a PersistentVolumeClaim: pvc=NAME:/PATH." .key .text) -}}
{{- end -}}
{{- if not (has $source (list "pvc" "configmap" "emptydir")) -}}
{{- fail (printf "%s: '%s' is no kind of volume. Write %s." .key $source $notation) -}}
{{- end -}}
{{- $words := .text | trimPrefix $source | trimPrefix "=" | splitList ":" -}}
{{- $name := index $words 0 -}}
{{- $manner := "" -}}
{{- if gt (len $words) 2 -}}
{{- $manner = index $words 2 -}}
{{- if not (has $manner (list "ro" "rw")) -}}
{{- fail (printf "%s: '%s' ends in '%s'. Write ':ro' to mount it read-only." .key .text $manner) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $source "configmap") (eq $manner "rw") -}}
{{- fail (printf "%s: '%s' asks to write to a ConfigMap. Leave ':rw' out." .key .text) -}}
{{- end -}}
{{- if eq $source "emptydir" -}}
{{- $bytes := include "ddp-job.bytes" (merge (dict "text" $name) .) | atoi -}}
{{- $name = include "ddp-job.size" (dict "bytes" $bytes "shapes" .shapes) -}}
{{- else -}}
{{- $_ := include "ddp-job.matching" (merge (dict "text" $name "shape" "queue") .) -}}
{{- end -}}
{{- $path := include "ddp-job.mountPath" (merge (dict "text" (index $words 1)) .) -}}
{{- $text := printf "%s=%s:%s%s" $source $name $path (ternary ":ro" "" (eq $manner "ro")) -}}
{{- dict "text" $text "source" $source "name" $name "path" $path "readOnly" (eq $manner "ro") | toJson -}}
{{- end -}}

{{- define "ddp-job.secretFiles" -}}
{{- if not (regexMatch (printf "^%s:[^:]+$" .shapes.patterns.subdomain) .text) -}}
{{- fail (printf "%s: '%s' mounts no Secret. Write 'NAME:/PATH', as in 'hub:/secrets/hub'." .key .text) -}}
{{- end -}}
{{- $words := splitn ":" 2 .text -}}
{{- $path := include "ddp-job.mountPath" (merge (dict "text" $words._1) .) -}}
{{- dict "text" (printf "%s:%s" $words._0 $path) "secret" $words._0 "path" $path | toJson -}}
{{- end -}}

{{- define "ddp-job.topology" -}}
{{- $isReplica := regexMatch (printf "^replica=%s(:required)?$" .shapes.patterns.qualified) .text -}}
{{- if not (or $isReplica (regexMatch (printf "^(pack|spread)=%s(:(required|preferred))?$" .shapes.patterns.qualified) .text)) -}}
{{- fail (printf "%s: '%s' is no wish about the nodes' places. Write pack=LABEL or spread=LABEL, with ':required' behind it to rather wait than do without, or replica=LABEL." .key .text) -}}
{{- end -}}
{{- $placement := regexFind "^[a-z]+" .text -}}
{{- $label := .text | trimPrefix $placement | trimPrefix "=" | trimSuffix ":required" | trimSuffix ":preferred" -}}
{{- $isRequired := or $isReplica (hasSuffix ":required" .text) -}}
{{- $text := printf "%s=%s%s" $placement $label (ternary ":required" "" (and $isRequired (not $isReplica))) -}}
{{- dict "text" $text "placement" $placement "key" $label "required" $isRequired | toJson -}}
{{- end -}}

{{- define "ddp-job.rdma" -}}
{{- $isWritten := regexMatch (printf "^%s(=[1-9][0-9]{0,2})?$" .shapes.patterns.qualified) .text -}}
{{- $words := splitn "=" 2 .text -}}
{{- if or (not $isWritten) (not (contains "/" $words._0)) -}}
{{- fail (printf "%s: '%s' names no RDMA resource. Write RESOURCE or RESOURCE=COUNT, as in 'rdma/ib=8'; 'kubectl describe node' shows the names." .key .text) -}}
{{- end -}}
{{- $count := default "1" $words._1 -}}
{{- dict "text" (printf "%s=%s" $words._0 $count) "resource" $words._0 "count" $count | toJson -}}
{{- end -}}

{{/* Who may read metrics: a namespace, a label of namespaces, addresses, or everybody. */}}
{{- define "ddp-job.reader" -}}
{{- $p := .shapes.patterns -}}
{{- $block := include "ddp-job.block" .text -}}
{{- if eq .text "*" -}}
{{- dict "text" "*" "label" "" "value" "" "addresses" "" | toJson -}}
{{- else if regexMatch (printf "^%s=%s$" $p.qualified $p.labelValue) .text -}}
{{- $words := splitn "=" 2 .text -}}
{{- $text := ternary $words._1 .text (eq $words._0 "kubernetes.io/metadata.name") -}}
{{- dict "text" $text "label" $words._0 "value" $words._1 "addresses" "" | toJson -}}
{{- else if $block -}}
{{- dict "text" $block "label" "" "value" "" "addresses" $block | toJson -}}
{{- else if and (regexMatch (printf "^%s$" $p.label) .text) (le (len .text) 63) -}}
{{- dict "text" .text "label" "kubernetes.io/metadata.name" "value" .text "addresses" "" | toJson -}}
{{- else -}}
{{- fail (printf "%s: '%s' is nobody who could read metrics. Name a namespace, a LABEL=VALUE of namespaces, a block of addresses such as 10.0.0.0/24, or '*'." .key .text) -}}
{{- end -}}
{{- end -}}

{{/* A DNS server: a label of pods in a namespace, or addresses. */}}
{{- define "ddp-job.dnsServer" -}}
{{- $p := .shapes.patterns -}}
{{- $block := include "ddp-job.block" .text -}}
{{- if regexMatch (printf "^%s/%s=%s$" $p.label $p.qualified $p.labelValue) .text -}}
{{- $words := splitn "=" 2 .text -}}
{{- $place := splitn "/" 2 $words._0 -}}
{{- dict "text" .text "namespace" $place._0 "label" $place._1 "value" $words._1 "addresses" "" | toJson -}}
{{- else if $block -}}
{{- dict "text" $block "addresses" $block | toJson -}}
{{- else -}}
{{- fail (printf "%s: '%s' names no DNS server. Write NAMESPACE/LABEL=VALUE of its pods, as in 'kube-system/k8s-app=kube-dns', or an address." .key .text) -}}
{{- end -}}
{{- end -}}

{{/* A block of addresses with its length, or nothing. IPv4 is checked to the last bit; IPv6 is left to the API server
     and taken as it is written. */}}
{{- define "ddp-job.block" -}}
{{- $octet := "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])" -}}
{{- if regexMatch (printf "^(%[1]s\\.){3}%[1]s(/([0-9]|[12][0-9]|3[0-2]))?$" $octet) . -}}
{{- $words := splitList "/" . -}}
{{- $bits := ternary (last $words) "32" (eq (len $words) 2) -}}
{{- $number := 0 -}}
{{- range first $words | splitList "." -}}{{- $number = add (mul $number 256) (atoi .) -}}{{- end -}}
{{- $size := 1 -}}
{{- range until (sub 32 (atoi $bits) | int) -}}{{- $size = mul $size 2 -}}{{- end -}}
{{- if eq (mod $number $size) 0 -}}{{- printf "%s/%s" (first $words) $bits -}}{{- end -}}
{{- else if regexMatch "^[0-9a-fA-F:.]*:[0-9a-fA-F:.]*(/[0-9]{1,3})?$" . -}}
{{- contains "/" . | ternary (lower .) (printf "%s/128" (lower .)) -}}
{{- end -}}
{{- end -}}
