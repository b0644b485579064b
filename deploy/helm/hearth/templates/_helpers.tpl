{{- define "hearth.labels" -}}
app.kubernetes.io/name: hearth
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "hearth.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "hearth.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}

{{- define "hearth.storeEnv" -}}
- {name: OBJECTS_URL, value: {{ .Values.objects.url | quote }}}
- {name: AWS_DEFAULT_REGION, value: {{ .Values.objects.region | quote }}}
{{- if .Values.objects.endpoint }}
- {name: AWS_ENDPOINT_URL, value: {{ .Values.objects.endpoint | quote }}}
{{- end }}
- {name: HEARTH_SERVICE_RING, value: /run/hearth/ring.json}
- {name: HEARTH_SERVICE_KEYS, value: /run/hearth/key}
- {name: HEARTH_DRAIN_TIMEOUT_S, value: {{ .Values.drainSeconds | quote }}}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}
