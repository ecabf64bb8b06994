{{- define "pdnode.name" -}}
{{ printf "pdnode-%s" .Values.config.role }}
{{- end }}

{{- define "pdnode.labels" -}}
app.kubernetes.io/name: pdnode
app.kubernetes.io/component: {{ .Values.config.role }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pdnode.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "pdnode.metricsPort" -}}
{{ .Values.config.metrics.listen | splitList ":" | last }}
{{- end }}
