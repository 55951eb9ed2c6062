# NOT RUN: this file needs Godot 4, which was not at hand. Please try it before you rely on it.
#
# A MultiplayerPeer over a Ferry relay: set it as multiplayer.multiplayer_peer, and RPCs, spawners and synchronizers
# work, reliable and unreliable, in channels. It stands on ferry_session.gd, ferry_message.gd, ferry_api.gd and
# ferry_link.gd as port.sed makes them of the scripts for Godot 3:
#
#   for f in message session api link; do sed -f port.sed ../ferry_$f.gd > ferry_$f.gd; done
#
# Both sides have to use it: what it sends is not what Unity's transport sends.
class_name FerryMultiplayerPeer
extends MultiplayerPeerExtension

const Api = preload("ferry_api.gd")
const Session = preload("ferry_session.gd")
const Link = preload("ferry_link.gd")

signal join_code_received(code) # of a host: give it to the other players
signal failed(reason)           # the connection cannot be made or has ended, in words
signal relay_silent()           # the relay does not answer; the session tries on for a minute
signal relay_resumed()

const SERVER = 1

var _api
var _session
var _ticket
var _host = false
var _status = CONNECTION_DISCONNECTED
var _own = 0
var _names = {} # by id: the session's name of a peer
var _ids = {}   # by name
var _links = {} # by id
var _packets = [] # [id, channel, mode, data]

var _target = 0
var _channel = 0
var _mode = TRANSFER_MODE_RELIABLE
var _refusing = false

func create_host(url: String, token: String, max_players: int) -> Error:
	_host = true
	_own = SERVER
	_api = Api.new(url, token)
	_status = CONNECTION_CONNECTING
	return _api.allocate(max_players)

func create_client(url: String, token: String, code: String) -> Error:
	_api = Api.new(url, token)
	_status = CONNECTION_CONNECTING
	return _api.join(code)

func _poll() -> void:
	if _api != null:
		var answer = _api.poll()
		if answer != null:
			_on_answer(answer)
	if _session == null:
		return
	for e in _session.poll():
		_on_event(e)
		if _session == null:
			return
	var now = Time.get_ticks_msec()
	for id in _links.keys():
		if _links[id].broken:
			_drop(id)
			continue
		for datagram in _links[id].due(now):
			_session.send(_names[id], datagram)

func _on_answer(answer) -> void:
	if not answer.ok:
		_fail(answer.reason)
	elif answer.has("code"):
		join_code_received.emit(answer.code)
	else:
		_ticket = answer.ticket
		_session = Session.new()
		if _session.start(_ticket) != OK:
			_fail("no socket")
			return
		if not _host:
			_own = _id_of(_ticket.id.hex_encode())
			_session.connect_host()

func _on_event(e) -> void:
	match e.event:
		Session.BOUND:
			if _host:
				_status = CONNECTION_CONNECTED
				_api.join_code(_ticket.allocation_id)
		Session.CONNECTED:
			_add(e.peer, SERVER)
			_links[SERVER].send(0, Link.RELIABLE, PackedByteArray()) # The host hears of a player by its first message.
			_status = CONNECTION_CONNECTED
			peer_connected.emit(SERVER)
		Session.JOINED:
			var id = _id_of(e.peer)
			if _refusing or _names.has(id):
				_session.disconnect_peer(e.peer)
				return
			_add(e.peer, id)
			peer_connected.emit(id)
		Session.MESSAGE:
			if _ids.has(e.peer):
				_on_datagram(_ids[e.peer], e.data)
		Session.LEFT, Session.LINK_LOST:
			if _ids.has(e.peer):
				_forget(_ids[e.peer])
				if not _host:
					_fail("the host has left" if e.event == Session.LEFT else e.reason)
		Session.REFUSED, Session.ENDED:
			_fail(e.reason)
		Session.SILENT:
			relay_silent.emit()
		Session.RESUMED:
			relay_resumed.emit()

func _on_datagram(id: int, datagram: PackedByteArray) -> void:
	for packet in _links[id].take(datagram):
		if packet[2].size() > 0:
			_packets.append([id, packet[0], packet[1], packet[2]])

# A number that Godot knows the player by: both sides make it of the allocation's id.
func _id_of(name: String) -> int:
	return max(2, name.substr(0, 8).hex_to_int() & 0x7FFFFFFF)

func _add(name: String, id: int) -> void:
	_names[id] = name
	_ids[name] = id
	_links[id] = Link.new()

func _forget(id: int) -> void:
	_ids.erase(_names[id])
	_names.erase(id)
	_links.erase(id)
	peer_disconnected.emit(id)

func _drop(id: int) -> void:
	_session.disconnect_peer(_names[id])
	_forget(id)

func _fail(reason: String) -> void:
	_close()
	failed.emit(reason)

# What MultiplayerPeerExtension asks for.

func _close() -> void:
	_status = CONNECTION_DISCONNECTED
	if _session != null:
		_session.close()
	_session = null
	_api = null
	_names.clear()
	_ids.clear()
	_links.clear()
	_packets.clear()

func _disconnect_peer(peer: int, _force: bool) -> void:
	if not _names.has(peer):
		return
	_drop(peer)
	if not _host:
		_close()

func _get_available_packet_count() -> int:
	return _packets.size()

func _get_packet_script() -> PackedByteArray:
	return _packets.pop_front()[3]

# Of the packet that _get_packet_script returns next.
func _get_packet_peer() -> int:
	return _packets[0][0] if _packets.size() > 0 else 0

func _get_packet_channel() -> int:
	return _packets[0][1] if _packets.size() > 0 else 0

func _get_packet_mode() -> MultiplayerPeer.TransferMode:
	return _packets[0][2] if _packets.size() > 0 else TRANSFER_MODE_RELIABLE

# The target is 0: all; an id; or -id: all but that one. The modes are those of ferry_link.gd.
func _put_packet_script(buffer: PackedByteArray) -> Error:
	var result = OK
	for id in _links:
		if _target == 0 or _target == id or _target < 0 and _target != -id:
			var err = _links[id].send(_channel, _mode, buffer)
			if err != OK:
				result = err
	return result

func _get_max_packet_size() -> int:
	return Link.MAX_PACKET

func _get_connection_status() -> MultiplayerPeer.ConnectionStatus:
	return _status

func _get_unique_id() -> int:
	return _own

func _is_server() -> bool:
	return _host

# Players reach each other by the host: Godot's SceneMultiplayer does that.
func _is_server_relay_supported() -> bool:
	return true

func _is_refusing_new_connections() -> bool:
	return _refusing

func _set_refuse_new_connections(enable: bool) -> void:
	_refusing = enable

func _set_target_peer(peer: int) -> void:
	_target = peer

func _set_transfer_channel(channel: int) -> void:
	_channel = channel

func _get_transfer_channel() -> int:
	return _channel

func _set_transfer_mode(mode: MultiplayerPeer.TransferMode) -> void:
	_mode = mode

func _get_transfer_mode() -> MultiplayerPeer.TransferMode:
	return _mode
