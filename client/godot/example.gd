# A host or a joiner in a console:
#
#   godot3-server -s example.gd host URL       prints the join code, and sends back what it gets
#   godot3-server -s example.gd join URL CODE  says hello to the host three times, and leaves
extends SceneTree

const FerryApi = preload("ferry_api.gd")
const FerrySession = preload("ferry_session.gd")

var api
var session
var ticket
var host = ""
var said = 0
var heard = 0
var say_at = 0

func _init():
	Engine.target_fps = 60
	var args = OS.get_cmdline_args()
	var at = 0
	while at < args.size() and args[at] != "host" and args[at] != "join":
		at += 1
	if at + 1 >= args.size() or args[at] == "join" and at + 2 >= args.size():
		return leave("usage: host URL | join URL CODE")
	api = FerryApi.new(args[at + 1])
	var err = api.allocate(4) if args[at] == "host" else api.join(args[at + 2])
	if err != OK:
		leave("error %d" % err)

func _idle(_delta):
	if api == null:
		return
	var answer = api.poll()
	if answer != null:
		on_answer(answer)
	if session == null:
		return
	for e in session.poll():
		on_event(e)
	if host != "" and OS.get_ticks_msec() >= say_at:
		say_at = OS.get_ticks_msec() + 500
		said += 1
		session.send(host, ("hello %d" % said).to_utf8())

func on_answer(answer):
	if not answer.ok:
		return leave("refused: " + answer.reason)
	if answer.has("code"):
		return print("code ", answer.code)
	ticket = answer.ticket
	session = FerrySession.new()
	if session.start(ticket) != OK:
		return leave("no socket")
	if not session.is_host():
		session.connect_host()

func on_event(e):
	match e.event:
		FerrySession.BOUND:
			if session.is_host():
				api.join_code(ticket.allocation_id)
		FerrySession.CONNECTED:
			print("connected")
			host = e.peer
		FerrySession.JOINED:
			print("a player has joined")
		FerrySession.LEFT:
			print("a player has left")
		FerrySession.MESSAGE:
			if session.is_host():
				session.send(e.peer, e.data)
				return
			print("back: ", e.data.get_string_from_utf8())
			heard += 1
			if heard == 3:
				session.close()
				leave("done")
		FerrySession.SILENT, FerrySession.RESUMED:
			print("the relay is silent" if e.event == FerrySession.SILENT else "the relay answers again")
		FerrySession.REFUSED, FerrySession.LINK_LOST, FerrySession.ENDED:
			leave(e.reason)

func leave(why):
	print(why)
	host = ""
	quit()
