{{/* A Kubernetes quantity as a number, for comparisons: 500m is 0.5, 1Ki is 1024. */}}
{{- define "ddp-platform.quantity" -}}
{{- $text := . | toString -}}
{{- $unit := regexFind "[A-Za-z]+$" $text -}}
{{- $factors := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18
  "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- mulf (trimSuffix $unit $text | float64) (get $factors $unit) -}}
{{- end }}

{{/* Seconds of a Prometheus duration. */}}
{{- define "ddp-platform.seconds" -}}
{{- mul (trimSuffix "s" (trimSuffix "m" .) | int) (ternary 60 1 (hasSuffix "m" .)) -}}
{{- end }}
