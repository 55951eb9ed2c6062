# A game that godot_test.go plays by lines over a TCP connection: commands to it, events from it. The environment has
# FERRY_PLAY: URL, TOKEN, host or a join code, and the port of the test.
extends SceneTree

const Api = preload("../ferry_api.gd")
const Session = preload("../ferry_session.gd")
const NAMES = ["bound", "silent", "resumed", "connected", "joined", "message", "left", "refused", "lost", "nolink", "ended"]

var control = StreamPeerTCP.new()
var line = PoolByteArray()
var api
var host
var session
var peer = ""
var flood = null

func _init():
	Engine.target_fps = 60
	var args = OS.get_environment("FERRY_PLAY").split(" ")
	control.connect_to_host("::1", int(args[3]))
	while control.get_status() == StreamPeerTCP.STATUS_CONNECTING:
		OS.delay_msec(1)
	api = Api.new(args[0], args[1] if args[1] != "-" else "")
	host = args[2] == "host"
	var err = api.allocate(4) if host else api.join(args[2].percent_decode())
	if err != OK:
		say("api 0 0 error %d" % err)

func say(text):
	control.put_data((text + "\n").to_utf8())

func _idle(_delta):
	if control.get_status() != StreamPeerTCP.STATUS_CONNECTED:
		if session != null:
			session.close()
		quit()
		return false
	var answer = api.poll()
	if answer != null:
		handle_answer(answer)
	for i in range(control.get_available_bytes()):
		var byte = control.get_u8()
		if byte != 10:
			line.append(byte)
			continue
		command(line.get_string_from_utf8())
		line = PoolByteArray()
	if session == null:
		return false
	var begin = OS.get_ticks_usec()
	var events = session.poll()
	if flood != null:
		count(events, OS.get_ticks_usec() - begin)
		return false
	for e in events:
		handle(e)
	return false

func handle_answer(answer):
	if not answer.ok:
		say("api %d %d %s" % [answer.status, answer.problem, answer.reason])
	elif answer.has("code"):
		say("code " + answer.code)
	else:
		say("ticket " + answer.ticket.allocation_id)
		session = Session.new()
		if session.start(answer.ticket) != OK:
			session = null
			return say("no start")
		session.connect_host()

func handle(e):
	if e.peer != "" and (e.event == Session.CONNECTED or e.event == Session.JOINED):
		peer = e.peer
	var who = "nobody" if e.peer == "" else "peer" if e.peer == peer else "other"
	match e.event:
		Session.BOUND:
			say("bound")
			if host:
				api.join_code(api_id())
		Session.MESSAGE: say("message " + e.data.get_string_from_utf8())
		_: say(("%s %s %d %s" % [NAMES[e.event], who, e.code, e.reason]).strip_edges())

func api_id():
	return session._ticket.allocation_id

func command(text):
	var words = text.split(" ", true, 1)
	match words[0]:
		"send":
			var err = session.send(peer, words[1].to_utf8())
			if err != OK:
				say("not sent %d" % err)
		"big":
			var content = PoolByteArray()
			for i in range(int(words[1])):
				content.append(120)
			say("big %d" % session.send(peer, content))
		"connect": say("connect %d" % session.connect_host())
		"disconnect": session.disconnect_peer(peer)
		"roam": session.roam()
		"nonce": say("nonce %d" % session._nonce)
		"flood": flood = {"want": int(words[1]), "all": 0, "most": 0, "longest": 0, "frames": 0, "memory": OS.get_static_memory_usage()}
		"rtt": say("rtt %d" % session.rtt())
		"close": session.close()

# Counts messages until there were enough, and says how many the busiest frame had, how long the longest poll took (µs),
# and how many frames there were.
func count(events, took):
	flood.frames += 1
	var n = 0
	for e in events:
		if e.event == Session.MESSAGE:
			n += 1
		else:
			handle(e)
	flood.all += n
	flood.most = max(flood.most, n)
	flood.longest = max(flood.longest, took)
	if flood.all >= flood.want:
		say("flood %d %d %d %d %d" % [flood.all, flood.most, flood.longest, flood.frames, OS.get_static_memory_usage() - flood.memory])
		flood = null
