{{/*
The pod specs of an object: a list of {path, spec}. A Pod has one; other kinds have pod templates at their own paths. All
is dyn, because a policy that matches several kinds has no single type to check.
*/}}
{{- define "ddp-platform.policy.specs" -}}
dyn(object).kind == "Pod"
? [{"path": dyn("spec"), "spec": dyn(object).spec}]
: dyn(object).kind == "CronJob"
? [{"path": dyn("spec.jobTemplate.spec.template.spec"), "spec": dyn(object).spec.jobTemplate.spec.template.spec}]
: dyn(object).kind == "PyTorchJob"
? dyn(object).spec.pytorchReplicaSpecs
    .filter(role, has(dyn(object).spec.pytorchReplicaSpecs[role].template)
      && has(dyn(object).spec.pytorchReplicaSpecs[role].template.spec))
    .map(role, {
      "path": dyn("spec.pytorchReplicaSpecs." + role + ".template.spec"),
      "spec": dyn(object).spec.pytorchReplicaSpecs[role].template.spec})
: dyn(object).kind in ["JobSet", "TrainingRuntime"]
? variables.jobs
    .filter(job, has(job.template.spec) && has(job.template.spec.template) && has(job.template.spec.template.spec))
    .map(job, {
      "path": dyn(variables.jobsPath + "[" + job.name + "].template.spec.template.spec"),
      "spec": job.template.spec.template.spec})
: has(dyn(object).spec) && has(dyn(object).spec.template) && has(dyn(object).spec.template.spec)
? [{"path": dyn("spec.template.spec"), "spec": dyn(object).spec.template.spec}]
: []
{{- end }}

{{/* The replicatedJobs of a JobSet or TrainingRuntime, and their path; empty for other kinds. */}}
{{- define "ddp-platform.policy.jobs" -}}
dyn(object).kind == "JobSet" && has(dyn(object).spec.replicatedJobs)
? dyn(object).spec.replicatedJobs
: dyn(object).kind == "TrainingRuntime" && has(dyn(object).spec.template) && has(dyn(object).spec.template.spec)
  && has(dyn(object).spec.template.spec.replicatedJobs)
? dyn(object).spec.template.spec.replicatedJobs
: []
{{- end }}

{{- define "ddp-platform.policy.jobsPath" -}}
dyn(object).kind == "JobSet" ? "spec.replicatedJobs" : "spec.template.spec.replicatedJobs"
{{- end }}

{{/*
The containers of the pods: one list of {path, spec, pod} per pod, because CEL cannot join them.
*/}}
{{- define "ddp-platform.policy.containers" -}}
variables.specs.map(pod,
  pod.spec.containers
    .map(container, {"path": dyn(pod.path + ".containers[" + container.name + "]"), "spec": container, "pod": pod.spec})
  + (has(pod.spec.initContainers) ? pod.spec.initContainers : [])
    .map(container, {"path": dyn(pod.path + ".initContainers[" + container.name + "]"), "spec": container, "pod": pod.spec})
  + (has(pod.spec.ephemeralContainers) ? pod.spec.ephemeralContainers : [])
    .map(container, {"path": dyn(pod.path + ".ephemeralContainers[" + container.name + "]"), "spec": container, "pod": pod.spec}))
{{- end }}

{{/*
One rule as a policy and its binding.

  root      the chart's scope
  rule      key of .Values.policies
  refused   CEL: per pod a list of the fields that break the rule, from variables.specs and variables.containers
  variables further variables by name, as CEL (none)
  resources further resourceRules, for objects without pods (none)
  sentence  what is wrong and what to do, after the fields, without a full stop

Templates are checked when they are created, so that the user sees the error immediately. Pods are checked whenever their
spec changes, which enforces the rule. Objects that are older than the policy stay, and their finalizers, suspension and
scale can change.
*/}}
{{- define "ddp-platform.policy" -}}
{{- $action := include "ddp-platform.policy.action" . }}
{{- if ne $action "Off" }}
{{- $name := printf "ddp-%s" (kebabcase .rule) }}
{{- $label := printf "ddp.dev/allow-%s" (kebabcase .rule) }}
{{- $metadata := dict "root" .root "name" $name "component" "policy" }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  {{- include "ddp-platform.metadata" $metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: ["v1"]
        operations: ["CREATE", "UPDATE"]
        resources: ["pods", "pods/ephemeralcontainers"]
      - apiGroups: ["batch"]
        apiVersions: ["v1"]
        operations: ["CREATE"]
        resources: ["jobs", "cronjobs"]
      - apiGroups: ["kubeflow.org"]
        apiVersions: ["v1"]
        operations: ["CREATE"]
        resources: ["pytorchjobs"]
      - apiGroups: ["jobset.x-k8s.io"]
        apiVersions: ["*"]
        operations: ["CREATE"]
        resources: ["jobsets"]
      - apiGroups: ["trainer.kubeflow.org"]
        apiVersions: ["*"]
        operations: ["CREATE"]
        resources: ["trainingruntimes"]
      {{- with .resources }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  matchConditions:
    - name: changes-what-runs
      expression: request.operation == "CREATE" || dyn(object).spec != dyn(oldObject).spec
  variables:
    - name: jobs
      expression: |-
        {{- include "ddp-platform.policy.jobs" . | nindent 8 }}
    - name: jobsPath
      expression: |-
        {{- include "ddp-platform.policy.jobsPath" . | nindent 8 }}
    - name: specs
      expression: |-
        {{- include "ddp-platform.policy.specs" . | nindent 8 }}
    - name: containers
      expression: |-
        {{- include "ddp-platform.policy.containers" . | nindent 8 }}
    {{- range $name, $expression := .variables }}
    - name: {{ $name }}
      expression: {{ quote $expression }}
    {{- end }}
    - name: refused
      expression: |-
        {{- .refused | trim | nindent 8 }}
  validations:
    - expression: variables.refused.all(fields, fields.size() == 0)
      messageExpression: |-
        variables.refused.filter(fields, fields.size() > 0).map(fields, fields.join(", ")).join(", ")
        + {{ printf ": %s; or ask a cluster administrator to label the namespace %s=true." .sentence $label | quote }}
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "ddp-platform.metadata" $metadata | nindent 2 }}
spec:
  policyName: {{ $name }}
  validationActions: [{{ $action }}]
  matchResources:
    namespaceSelector:
      matchExpressions:
        - {key: kubernetes.io/metadata.name, operator: In, values: {{ include "ddp-platform.policy.namespaces" .root }}}
        - {key: {{ $label }}, operator: NotIn, values: ["true"]}
{{- end }}
{{- end }}

{{/* The names of the platform's namespaces, as JSON. Labels would miss those that the chart does not create. */}}
{{- define "ddp-platform.policy.namespaces" -}}
{{- $names := list }}
{{- range (include "ddp-platform.namespaces" . | fromYaml).items }}
{{- $names = append $names .name }}
{{- end }}
{{- toJson $names }}
{{- end }}

{{/* Deny, Warn, Audit or Off; a bare `off` is false in YAML. */}}
{{- define "ddp-platform.policy.action" -}}
{{- $action := index .root.Values.policies .rule }}
{{- if or (not $action) (eq (lower (toString $action)) "off") }}Off{{ else }}{{ $action }}{{ end }}
{{- end }}

{{/* A value as CEL. Every part is dyn, because elements of a list or map literal must have the same type. */}}
{{- define "ddp-platform.policy.literal" -}}
{{- if kindIs "map" . -}}
{{- $entries := list -}}
{{- range $key, $value := . -}}
{{- $entries = append $entries (printf "%s: %s" (toJson $key) (include "ddp-platform.policy.literal" $value)) -}}
{{- end -}}
dyn({ {{- join ", " $entries -}} })
{{- else if kindIs "slice" . -}}
{{- $items := list -}}
{{- range . -}}
{{- $items = append $items (include "ddp-platform.policy.literal" .) -}}
{{- end -}}
dyn([ {{- join ", " $items -}} ])
{{- else -}}
dyn({{ toJson . }})
{{- end -}}
{{- end }}
