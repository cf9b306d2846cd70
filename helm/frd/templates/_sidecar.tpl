{{/*
The agent as a sidecar of the ranks: the parts that a pod of a training job needs. Each template takes the
chart's context, so a chart that depends on this one can use them too, with .Subcharts.frd.
*/}}

{{- define "frd.agent.command" -}}
- frd-agent
- run
- --service={{ include "frd.agentService" .root }}
- --run-dir={{ .runDir }}
- --metrics={{ .root.Values.bindAddress }}:{{ .root.Values.agent.metricsPort }}
{{- if not .root.Values.insecure }}
- --tls-ca-file=/etc/frd/ca.crt
{{- if .root.Values.tls.clientCertificates }}
- --tls-cert-file=/etc/frd/tls.crt
- --tls-key-file=/etc/frd/tls.key
{{- end }}
- --token-file=/etc/frd/token
{{- end }}
{{- if and .stopsWithRanks (not (hasKey .root.Values.agent.config "outlive_ranks_s")) }}
- --outlive-ranks
{{- end }}
{{- range .root.Values.agent.extraArgs }}
- {{ quote . }}
{{- end }}
{{- end }}

{{- define "frd.agent.env" -}}
- name: FRD_AGENT_NODE
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
# For commands in the container: `kubectl exec POD --container frd-agent -- frd doctor`.
- name: FRD_RUN_DIR
  value: /run/frd/run
{{- range $key, $value := .Values.agent.config }}
- name: FRD_AGENT_{{ upper $key }}
  value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}
{{- if .Values.agent.gpus }}
- name: NVIDIA_VISIBLE_DEVICES
  value: all
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
{{- end }}
{{- with .Values.agent.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
(dict "runAsUser" uid "capabilities" list). Kubernetes gives a container of another user than root no added
capability (its process starts with CapEff 0), so a list that cannot have an effect is refused:
(dict "of" "agent.sidecar" ...) names the values.
*/}}
{{- define "frd.agent.securityContext" -}}
{{- if and .capabilities (ne (int .runAsUser) 0) }}
{{- fail (printf "%s.capabilities: %s: Kubernetes gives added capabilities to root only: set %s.runAsUser to 0 (now %v), or remove them" .of (join ", " .capabilities) .of .runAsUser) }}
{{- end -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  {{- with .capabilities }}
  add: [{{ join ", " . }}]
  {{- end }}
readOnlyRootFilesystem: true
runAsNonRoot: {{ ne (int .runAsUser) 0 }}
runAsUser: {{ .runAsUser }}
{{- if not (kindIs "invalid" .runAsGroup) }}
runAsGroup: {{ .runAsGroup }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/*
Two: the tap, copied for images without frd, then the agent. It has no probe and the copy cannot
fail: nothing of frd shall hold up a rank or make its pod unready. Only the agent gets the capabilities.
*/}}
{{- define "frd.sidecar.initContainers" -}}
{{- $sidecar := .Values.agent.sidecar -}}
- name: frd-tap
  image: {{ include "frd.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [sh, -c, "cp -r /opt/frd/tap /run/frd/ && mkdir -p -m 0700 /run/frd/run /run/frd/run/dumps || true"]
  resources:
    {{- toYaml .Values.agent.resources | nindent 4 }}
  securityContext:
    {{- include "frd.agent.securityContext" (dict "runAsUser" $sidecar.runAsUser) | nindent 4 }}
  volumeMounts:
    - name: frd
      mountPath: /run/frd
- name: frd-agent
  restartPolicy: Always
  image: {{ include "frd.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command:
    {{- include "frd.agent.command" (dict "root" . "runDir" "/run/frd/run" "stopsWithRanks" true) | nindent 4 }}
  {{- with include "frd.agent.env" . | trim }}
  env:
    {{- . | nindent 4 }}
  {{- end }}
  ports:
    - name: frd-metrics
      containerPort: {{ .Values.agent.metricsPort }}
  resources:
    {{- toYaml .Values.agent.resources | nindent 4 }}
  securityContext:
    {{- include "frd.agent.securityContext" (dict "of" "agent.sidecar" "runAsUser" $sidecar.runAsUser "capabilities" $sidecar.capabilities) | nindent 4 }}
  volumeMounts:
    - name: frd
      mountPath: /run/frd
    {{- if not .Values.insecure }}
    - name: frd-credentials
      mountPath: /etc/frd
      readOnly: true
    {{- end }}
    {{- with .Values.agent.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* No sizeLimit on the first: to exceed one evicts the pod, and torch bounds its dumps itself. */}}
{{- define "frd.sidecar.volumes" -}}
- name: frd
  emptyDir: {}
{{- if not .Values.insecure }}
- name: frd-credentials
  secret:
    secretName: {{ include "frd.agentSecret" . }}
{{- end }}
{{- with .Values.agent.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* For the containers whose processes are ranks; what `frd-agent exec` would set, as variables. */}}
{{- define "frd.sidecar.env" -}}
- name: FRD_RUN_DIR
  value: /run/frd/run
- name: PYTHONPATH
  value: /run/frd/tap/_site
- name: TORCH_FR_BUFFER_SIZE
  value: "2000"
- name: TORCH_NCCL_TRACE_BUFFER_SIZE
  value: "2000"
- name: TORCH_FR_DUMP_TEMP_FILE
  value: /run/frd/run/dumps/rank_
- name: TORCH_NCCL_DEBUG_INFO_TEMP_FILE
  value: /run/frd/run/dumps/rank_
{{- end }}

{{- define "frd.sidecar.volumeMounts" -}}
- name: frd
  mountPath: /run/frd
{{- end }}

{{/* All of it, as part of a pod's spec. */}}
{{- define "frd.sidecar.recipe" -}}
# Without it the agent has only what the ranks publish: no stack while the interpreter lock is held, no exit.
shareProcessNamespace: true
initContainers:
  {{- include "frd.sidecar.initContainers" . | nindent 2 }}
containers:
  - name: training # yours
    env:
      - name: POD_NAMESPACE
        valueFrom:
          fieldRef:
            fieldPath: metadata.namespace
      - name: POD_JOB
        valueFrom:
          fieldRef:
            fieldPath: metadata.labels['batch.kubernetes.io/job-name']
      - name: FRD_JOB # the same in all pods of the job, and in no other job
        value: $(POD_NAMESPACE)/$(POD_JOB)
      {{- include "frd.sidecar.env" . | nindent 6 }}
    volumeMounts:
      {{- include "frd.sidecar.volumeMounts" . | nindent 6 }}
volumes:
  {{- include "frd.sidecar.volumes" . | nindent 2 }}
{{- end }}

{{- define "frd.daemonset.recipe" -}}
containers:
  - name: training # yours
    env:
      - name: POD_NAMESPACE
        valueFrom:
          fieldRef:
            fieldPath: metadata.namespace
      - name: POD_JOB
        valueFrom:
          fieldRef:
            fieldPath: metadata.labels['batch.kubernetes.io/job-name']
      - name: FRD_JOB # the same in all pods of the job, and in no other job
        value: $(POD_NAMESPACE)/$(POD_JOB)
      {{- include "frd.sidecar.env" . | nindent 6 }}
    volumeMounts:
      {{- include "frd.sidecar.volumeMounts" . | nindent 6 }}
volumes:
  - name: frd
    hostPath:
      path: {{ .Values.agent.daemonset.hostPath }}
{{- end }}
