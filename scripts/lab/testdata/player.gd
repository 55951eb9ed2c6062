# A player in Godot for worldclients_test.go: FERRY_PLAY is URL, code and token. It sends a number each
# 250 ms, and prints what comes back. The scripts of client/godot lie beside it.
extends SceneTree

const FerryApi = preload("ferry_api.gd")
const FerrySession = preload("ferry_session.gd")

var api
var session
var host = ""
var said = 0
var say_at = 0

func _init():
	Engine.target_fps = 60
	var args = OS.get_environment("FERRY_PLAY").split(" ")
	api = FerryApi.new(args[0], args[2])
	api.join(args[1])

func _idle(_delta):
	var answer = api.poll()
	if answer != null and not answer.ok:
		return leave("ended: " + answer.reason)
	if answer != null:
		session = FerrySession.new()
		session.start(answer.ticket)
		session.connect_host()
	if session == null:
		return false
	for e in session.poll():
		match e.event:
			FerrySession.CONNECTED:
				host = e.peer
				print("connected")
			FerrySession.MESSAGE: print("back ", e.data.get_string_from_utf8())
			FerrySession.SILENT: print("silent")
			FerrySession.RESUMED: print("resumed")
			FerrySession.LEFT: return leave("ended: the host has left")
			FerrySession.REFUSED, FerrySession.LINK_LOST, FerrySession.ENDED: return leave("ended: " + e.reason)
	if host != "" and OS.get_ticks_msec() >= say_at:
		say_at = OS.get_ticks_msec() + 250
		said += 1
		session.send(host, str(said).to_utf8())
	return false

func leave(why):
	print(why)
	quit()
	return true
