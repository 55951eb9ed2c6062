{{/* The image of ferry, by digest if there is one. */}}
{{- define "ferry.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else if .tag }}:{{ .tag }}{{ end }}
{{- end -}}
{{- end -}}

{{/* The namespace of the relays. The API's namespace refuses pods on the node's network. */}}
{{- define "ferry.relayNamespace" -}}
{{- $name := .Values.relay.namespace | default (printf "%s-relays" .Release.Namespace) -}}
{{- if and .Values.api.enabled .Values.relay.enabled (eq $name .Release.Namespace) -}}
{{- fail "relay.namespace must not be the namespace of the release, in which the API runs without privileges" -}}
{{- end -}}
{{ $name }}
{{- end -}}

{{/* The name of the objects of a release that are in no namespace: ferry-node-address for ferry-relays. */}}
{{- define "ferry.nodeAddress" -}}
{{ include "ferry.relayNamespace" . | trimSuffix "-relays" }}-node-address
{{- end -}}

{{/* The labels of a component. */}}
{{- define "ferry.labels" -}}
{app.kubernetes.io/name: ferry, app.kubernetes.io/component: {{ . }}}
{{- end -}}

{{/* The seconds of a duration such as 1h30m. */}}
{{- define "ferry.seconds" -}}
{{- $sum := 0 -}}
{{- range $unit, $seconds := dict "h" 3600 "m" 60 "s" 1 -}}
{{- with regexFind (printf "[0-9]+%s" $unit) $ -}}
{{- $sum = add $sum (mul $seconds (int64 (trimSuffix $unit .))) -}}
{{- end -}}
{{- end -}}
{{ $sum }}
{{- end -}}

{{/* The text of a setting in a variable: true, 1000000, a,b. */}}
{{- define "ferry.settingText" -}}
{{- if kindIs "slice" . -}}
{{- $items := list -}}
{{- range . }}{{ $items = append $items (include "ferry.settingText" .) }}{{ end -}}
{{ join "," $items }}
{{- else -}}
{{ kindIs "string" . | ternary . (toJson .) }}
{{- end -}}
{{- end -}}
