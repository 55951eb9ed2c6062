# The Allocations API, without a thread: a call begins with allocate(), join_code() or join(), and poll() returns null
# in each frame until it has the answer. One call at a time.
#
# An answer is a dictionary: ok; ticket (of allocate and join) or code (of join_code); and, if not ok, status (of HTTP;
# 0: there was no answer), problem (the API's code, such as 15009: no such join code; 0: none) and reason in words.
# A ticket is for FerrySession: allocation_id (text), id, key, data, host_data (empty: of a host) and servers.

const MAX_ANSWER = 65536
const CHUNKS_PER_POLL = 16

# What a chat or a keyboard puts into a code and no player sees as a part of it. The server judges the rest.
const INVISIBLE = " \t\r\n\u000b\u000c\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000-\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"

var timeout = 10000 # ms

var _host = ""
var _port = 0
var _tls = false
var _prefix = ""
var _token

var _http
var _body         # to be sent; null: it was sent
var _path
var _answer
var _since = 0

# url is such as https://relay.example.org:7777; with another form, each call returns ERR_INVALID_PARAMETER. token is empty for a developer's relay (ferry dev).
func _init(url, token = ""):
	_token = token
	_tls = url.to_lower().begins_with("https://")
	if not _tls and not url.to_lower().begins_with("http://"):
		return _refuse(url)
	var rest = url.substr(8 if _tls else 7)
	for c in "@?#\\ ":
		if c in rest:
			return _refuse(url)
	var slash = rest.find("/")
	if slash >= 0:
		_prefix = rest.substr(slash).rstrip("/")
		rest = rest.substr(0, slash)
	_port = 443 if _tls else 80
	var colon = rest.find_last(":")
	if colon > rest.find_last("]"):
		_port = int(rest.substr(colon + 1))
		if _port < 1 or _port > 65535 or str(_port) != rest.substr(colon + 1):
			return _refuse(url)
		rest = rest.substr(0, colon)
	_host = rest.trim_prefix("[").trim_suffix("]")
	if _host == "" or (":" in _host) != rest.begins_with("[") or rest.begins_with("[") != rest.ends_with("]"):
		_refuse(url)

# The token must not go to another server than the one that the game means.
func _refuse(url):
	_host = ""
	push_error("\"" + url + "\" is no address of a server, such as https://relay.example.org:7777")

# Reserves an allocation for a host and at most so many players. region: one of the relay's regions; empty: the server
# chooses.
func allocate(max_connections, region = ""):
	var body = {"maxConnections": max_connections}
	if region != "":
		body["region"] = region
	return _begin("/v1/allocate", body)

# Asks for the join code of the caller's host. Bind first, then give it away.
func join_code(allocation_id):
	return _begin("/v1/joincode", {"allocationId": allocation_id})

# Reserves an allocation for a player of the host with that code, as it is typed or pasted. Bind within 10 s.
func join(code):
	return _begin("/v1/join", {"joinCode": trim(code)})

static func trim(code):
	var kept = ""
	for i in range(code.length()):
		if not code[i] in INVISIBLE:
			kept += code[i]
	return kept

func poll():
	if _http == null:
		return null
	if OS.get_ticks_msec() - _since >= timeout:
		return _fail(0, "the server does not answer")
	_http.poll()
	var status = _http.get_status()
	if status == HTTPClient.STATUS_RESOLVING or status == HTTPClient.STATUS_CONNECTING or status == HTTPClient.STATUS_REQUESTING:
		return null
	if status == HTTPClient.STATUS_CONNECTED and _body != null:
		return _send()
	if status == HTTPClient.STATUS_BODY:
		return _read()
	if _http.has_response():
		return _finish()
	if status == HTTPClient.STATUS_CANT_RESOLVE:
		return _fail(0, "the server's name cannot be resolved")
	if status == HTTPClient.STATUS_CANT_CONNECT:
		return _fail(0, "the server cannot be reached")
	if _tls and _body != null:
		return _fail(0, "the TLS handshake has failed")
	return _fail(0, "the server has closed the connection")

func _begin(path, body):
	if _http != null:
		return ERR_BUSY
	if _host == "":
		return ERR_INVALID_PARAMETER
	_path = _prefix + path
	_body = JSON.print(body)
	_answer = PoolByteArray()
	_since = OS.get_ticks_msec()
	_http = HTTPClient.new()
	var err = _http.connect_to_host(_host, _port, _tls, _tls)
	if err != OK:
		_http = null
	return err

func _send():
	var headers = ["Content-Type: application/json"]
	if _token != "":
		headers.append("Authorization: Bearer " + _token)
	var err = _http.request(HTTPClient.METHOD_POST, _path, headers, _body)
	_body = null
	return null if err == OK else _fail(0, "the request cannot be sent")

func _read():
	for i in range(CHUNKS_PER_POLL):
		_answer.append_array(_http.read_response_body_chunk())
		if _answer.size() > MAX_ANSWER:
			return _fail(0, "the answer is too long")
		if _http.get_status() != HTTPClient.STATUS_BODY:
			return _finish()
	return null

func _finish():
	var status = _http.get_response_code()
	var answer = _dictionary(JSON.parse(_answer.get_string_from_utf8()).result) # Empty if it is a page of a proxy.
	if status < 200 or status >= 300:
		var reason = str(answer.get("detail", "HTTP status " + str(status)))
		var details = answer.get("details")
		for d in details if typeof(details) == TYPE_ARRAY else []:
			if typeof(d) == TYPE_DICTIONARY:
				reason += "; " + str(d.get("key")) + ": " + str(d.get("value"))
		return _fail(status, reason, int(str(answer.get("code", 0))))
	var data = _dictionary(answer.get("data"))
	if typeof(data.get("joinCode")) == TYPE_STRING:
		_http = null
		return {"ok": true, "code": data.joinCode}
	var ticket = _ticket_of(_dictionary(data.get("allocation")))
	if ticket == null:
		return _fail(status, "the answer has no allocation for UDP")
	_http = null
	return {"ok": true, "ticket": ticket}

static func _dictionary(v):
	return v if typeof(v) == TYPE_DICTIONARY else {}

func _ticket_of(a):
	for field in ["allocationId", "allocationIdBytes", "key", "connectionData"]:
		if typeof(a.get(field)) != TYPE_STRING:
			return null
	var servers = []
	var endpoints = a.get("serverEndpoints")
	for e in endpoints if typeof(endpoints) == TYPE_ARRAY else []:
		e = _dictionary(e)
		if str(e.get("connectionType")) == "udp":
			servers.append([str(e.get("host")), int(str(e.get("port")))])
	if servers.size() == 0:
		return null
	return {
		"allocation_id": a.allocationId, "id": Marshalls.base64_to_raw(a.allocationIdBytes),
		"key": Marshalls.base64_to_raw(a.key), "data": Marshalls.base64_to_raw(a.connectionData),
		"host_data": Marshalls.base64_to_raw(str(a.get("hostConnectionData", ""))), "servers": servers
	}

func _fail(status, reason, problem = 0):
	_http.close()
	_http = null
	return {"ok": false, "status": status, "problem": problem, "reason": reason}
