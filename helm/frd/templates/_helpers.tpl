{{/* Names, labels and other parts that several templates share. */}}

{{- define "frd.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* At most 40 characters: the longest suffix and a pod's own still fit into a label. */}}
{{- define "frd.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "frd.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "frd.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Labels of selectors; they never change during the life of a release. */}}
{{- define "frd.selectorLabels" -}}
app.kubernetes.io/name: {{ include "frd.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels of every object: (dict "root" $ "component" "service"). */}}
{{- define "frd.labels" -}}
{{ include "frd.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: frd
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "frd.image" -}}
{{- with .Values.image }}
{{- with .registry }}{{ trimSuffix "/" . }}/{{ end }}
{{- if .digest }}{{ .repository }}@{{ .digest }}
{{- else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end }}
{{- end }}
{{- end }}

{{- define "frd.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "frd.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Of the DaemonSet. Sidecars run under the account of their job's pod. */}}
{{- define "frd.agentServiceAccountName" -}}
{{- with .Values.agent.daemonset.serviceAccount }}
{{- if .create }}
{{- default (printf "%s-agent" (include "frd.fullname" $)) .name }}
{{- else }}
{{- default "default" .name }}
{{- end }}
{{- end }}
{{- end }}

{{/* The host name that agents and Prometheus use; the certificate must have it. */}}
{{- define "frd.host" -}}
{{ include "frd.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{/* Not empty if the service is a replica of a cluster. */}}
{{- define "frd.cluster" -}}
{{- if dig "cluster" "servers" list .Values.config }}yes{{ end }}
{{- end }}

{{/* What agents call: the service's host, or all pods of a cluster. An agent tries them one after the
     other, without waiting for Kubernetes to notice that a node is gone. Every certificate of this chart
     has these names. */}}
{{- define "frd.agentService" -}}
{{- if include "frd.cluster" . }}
{{- $name := include "frd.fullname" . }}
{{- $addresses := list }}
{{- range $number := until (int .Values.replicas) }}
{{- $addresses = append $addresses (printf "%s-%d.%s-headless.%s.svc:%v" $name $number $name $.Release.Namespace $.Values.service.grpcPort) }}
{{- end }}
{{- join "," $addresses }}
{{- else }}
{{- include "frd.host" . }}:{{ .Values.service.grpcPort }}
{{- end }}
{{- end }}

{{- define "frd.scheme" -}}
{{ ternary "http" "https" .Values.insecure }}
{{- end }}

{{/* The URL for users: their own, else that of the Ingress, else that of the Service in the cluster. */}}
{{- define "frd.address" -}}
{{- if .Values.config.public_url }}
{{- .Values.config.public_url | trimSuffix "/" }}
{{- else if .Values.ingress.enabled }}
{{- printf "%s://%s" (ternary "https" "http" (not (empty .Values.ingress.tls))) (first .Values.ingress.hosts) }}
{{- else }}
{{- printf "%s://%s:%v" (include "frd.scheme" .) (include "frd.host" .) .Values.service.httpPort }}
{{- end }}
{{- end }}

{{/* Base URL of runbooks, for links of alerts, dashboards and messages. */}}
{{- define "frd.runbooks" -}}
{{ default (printf "%s/runbooks" (include "frd.address" .)) .Values.runbookUrl | trimSuffix "/" }}
{{- end }}

{{/* Not empty if the service serves the page for browsers. */}}
{{- define "frd.web" -}}
{{- if dig "web" true .Values.config }}yes{{ end }}
{{- end }}

{{/* A file of the chart with the links to pages and runbooks of this release: the file itself has the
     address of a service on the local machine, with its default port. Pages come first: runbooks may be
     anywhere, also there. (dict "root" $ "path" path) */}}
{{- define "frd.linked" -}}
{{- $address := include "frd.address" .root }}
{{- .root.Files.Get .path
      | replace "page_url: http://127.0.0.1:9374/" (printf "page_url: %s/" $address)
      | replace "http://127.0.0.1:9093/" (printf "%s/" (default "" .root.Values.config.alertmanager_url | trimSuffix "/"))
      | replace "http://127.0.0.1:9374/findings/" (printf "%s/findings/" $address)
      | replace "http://127.0.0.1:9374/runbooks/" (printf "%s/" (include "frd.runbooks" .root)) }}
{{- end }}

{{- define "frd.tlsSecret" -}}
{{ default (printf "%s-tls" (include "frd.fullname" .)) .Values.tls.secretName }}
{{- end }}

{{- define "frd.tokenSecret" -}}
{{ default (printf "%s-tokens" (include "frd.fullname" .)) .Values.auth.secretName }}
{{- end }}

{{- define "frd.agentSecret" -}}
{{ default (printf "%s-agent" (include "frd.fullname" .)) .Values.agent.secretName }}
{{- end }}

{{/* Every name under which clients may reach the service. */}}
{{- define "frd.dnsNames" -}}
{{- $name := include "frd.fullname" . }}
{{- $space := .Release.Namespace }}
{{- list $name (printf "%s.%s" $name $space) (printf "%s.%s.svc" $name $space) (printf "%s.%s.svc.cluster.local" $name $space) (printf "*.%s-headless.%s.svc" $name $space) "localhost" | toJson }}
{{- end }}

{{/* A TOML document of a map whose values are scalars, maps of scalars, or lists of such maps. JSON's scalars are valid TOML. */}}
{{- define "frd.toml" -}}
{{- range $key, $value := . }}
{{- if not (or (kindIs "map" $value) (eq $key "notify")) }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- range $section, $values := . }}
{{- if kindIs "map" $values }}

[{{ $section }}]
{{- range $key, $value := $values }}
{{ regexMatch "^[A-Za-z0-9_-]+$" $key | ternary $key (toJson $key) }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- end }}
{{- range $target := .notify }}

[[notify]]
{{- range $key, $value := $target }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* The service's configuration: the user's keys and the chart's. */}}
{{- define "frd.config" -}}
{{- $config := deepCopy .Values.config }}
{{- $_ := set $config "grpc" (printf "%s:%d" .Values.bindAddress (int .Values.service.grpcPort)) }}
{{- $_ := set $config "http" (printf "%s:%d" .Values.bindAddress (int .Values.service.httpPort)) }}
{{- $_ := set $config "data_dir" "/var/lib/frd" }}
{{- if not (contains "*" (include "frd.address" .)) }}
{{- $_ := set $config "public_url" (include "frd.address" .) }}
{{- end }}
{{- if and (include "frd.cluster" .) (not .Values.insecure) (not (dig "cluster" "peers_ca_file" "" $config)) }}
{{- $_ := set $config.cluster "peers_ca_file" "/etc/frd/credentials/ca.crt" }}
{{- end }}
{{- range $target := $config.notify }}
{{- if not $target.runbook_url }}
{{- $_ := set $target "runbook_url" (include "frd.runbooks" $) }}
{{- end }}
{{- end }}
{{- if .Values.insecure }}
{{- $_ := set $config "insecure" true }}
{{- else }}
{{- $tls := dict "cert_file" "/etc/frd/credentials/tls.crt" "key_file" "/etc/frd/credentials/tls.key" }}
{{- if .Values.tls.clientCertificates }}
{{- $_ := set $tls "client_ca_file" "/etc/frd/credentials/ca.crt" }}
{{- end }}
{{- $_ := set $config "tls" $tls }}
{{- $_ := set $config "auth" (dict "token_file" "/etc/frd/credentials/tokens") }}
{{- end }}
{{- include "frd.toml" $config | trim }}
{{- end }}
