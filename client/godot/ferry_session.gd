# A host's or joiner's session with a relay over UDP, without a thread. The game calls poll() in each frame, which
# works a bounded time and returns what has happened. Nothing blocks.
#
# A session repeats BIND and CONNECT_REQUEST, sends a PING each second, binds again from a new socket when the relay
# is silent or the system refuses to send, and makes a link again that the relay has dropped. As with UDP, messages
# may be lost, doubled or late.

const Message = preload("ferry_message.gd")

# An event is a dictionary: event, peer (the other side's id in hex, or empty), code, reason (the code in words)
# and data (content of MESSAGE).
enum {
	BOUND,      # the relay has confirmed the first BIND: a host may ask for its join code and give it away
	SILENT,     # the relay has not answered for about three seconds; the session binds again
	RESUMED,    # after SILENT: it answers again
	CONNECTED,  # a joiner has the link to peer, its host
	JOINED,     # a host has got the first message of peer
	MESSAGE,    # data of peer
	LEFT,       # peer has disconnected, or was silent for a minute and made room for another
	REFUSED,    # connect_host() of a joiner has failed, and may be called again
	LINK_LOST,  # the link to peer, the host, has gone and could not be made again; connect_host() starts anew
	NO_LINK,    # a message of a host met no link. The relay does not say of whom: peer is set if there is one only
	ENDED       # the session is over: nothing follows
}

# Values of code besides those of the relay's ERRORs.
enum {NONE = -1, HOST_IS_FULL = -2, NO_ANSWER = -3, NONCES_USED_UP = -4, IN_USE = -5}

const PERIOD = 1000         # ms, of PING, and between repetitions of a request
const SILENT_PINGS = 3      # without an answer
const BIND_TIMEOUT = 10000
const REBIND_TIMEOUT = 60000
const CONNECT_TIMEOUT = 60000
const RELINK_TIMEOUT = 5000
const REBIND_PAUSE = 100    # one lost endpoint earns an ERROR 3 for each datagram on its way
const SENDS_PER_NONCE = 4   # the relay takes an equal nonce from an equal endpoint only
const MAX_REFUSED = 3 * SENDS_PER_NONCE
const REFUSED_WITHIN = 30000
const MAX_DISCONNECTS = 4
const CLOSES = 3            # CLOSE has no answer
const MAX_PEERS = 100
const EVICT_AFTER = 60000

const _PHASE_NEW = 0
const _PHASE_RUNNING = 1
const _PHASE_OVER = 2

# poll() takes so many datagrams. More wait in Godot's buffer of 64 KB, and are lost when that is full.
var datagrams_per_poll = 256

var _phase = _PHASE_NEW
var _ticket
var _own              # id in hex
var _events = []
var _peers = {}       # by id in hex: id, heard, leaving (a retry, or null)
var _host = ""        # of a joiner that has, or had, its link

var _socket
var _server = 0       # of ticket.servers
var _send_failed = false
var _reopen_at = 0

var _bound = false
var _silent = false   # SILENT was reported
var _why_silent = NO_ANSWER
var _bind = _new_retry()
var _bind_sent_at = -REBIND_PAUSE
var _nonce = 0
var _nonce_used = false
var _first_nonce = false # ERROR 3 began this series of BINDs, and it has used no other nonce
var _refused = 0         # BINDs
var _refused_since = 0
var _turns = 0        # of sockets, since the relay has answered
var _socket_until = 0

var _connect = _new_retry()
var _connect_sent_at = -PERIOD
var _connect_sent = false  # for the present request
var _relink = false

var _ping_at = 0
var _ping_number = 0
var _ping_sent_at = 0
var _ping_open = false
var _unanswered = 0   # PINGs
var _rtt = 0

# Begins to bind. A ticket is what FerryApi returns. nonce is 0 for a new allocation; a program that starts again with
# one that it has bound before gives a higher one than before. Returns OK or an error.
func start(ticket, nonce = 0):
	if _phase != _PHASE_NEW:
		return ERR_ALREADY_IN_USE
	for data in [ticket.data, ticket.host_data]:
		if data.size() > Message.MAX_DATA:
			return ERR_INVALID_PARAMETER
	if ticket.id.size() != Message.ID_SIZE or ticket.key.size() != Message.KEY_SIZE or ticket.data.size() == 0:
		return ERR_INVALID_PARAMETER
	_ticket = ticket
	_own = ticket.id.hex_encode()
	_nonce = nonce
	if not _open(0):
		return ERR_CANT_CREATE
	_phase = _PHASE_RUNNING
	var now = _now()
	_begin_bind(now, now)
	return OK

# Asks for the link of a joiner to its host, as soon as the session is bound: CONNECTED or REFUSED follows.
func connect_host():
	if _phase != _PHASE_RUNNING or is_host():
		return ERR_UNAVAILABLE
	if _connect.active or _is_open(_host):
		return ERR_ALREADY_IN_USE
	_begin_connect(_now())
	return OK

# Sends bytes to a peer. OK does not say that they arrive.
func send(peer, content):
	if _phase != _PHASE_RUNNING:
		return ERR_UNAVAILABLE
	if content.size() > Message.MAX_CONTENT:
		return ERR_INVALID_PARAMETER
	if not _is_open(peer):
		return ERR_DOES_NOT_EXIST
	return _transmit({"type": Message.RELAY, "from": _ticket.id, "to": _peers[peer].id, "data": content})

# Ends the link to a peer, which is told. The relay lets it connect again: the game has to refuse it.
func disconnect_peer(peer):
	if not _is_open(peer):
		return
	if _relink:
		_end_connect()
	_peers[peer].leaving = _new_retry()
	_start_retry(_peers[peer].leaving, _now(), _now())

# Moves the session to a new socket, and so to the address that the machine has now. A session does so by itself when
# the relay is silent or the system refuses to send.
func roam():
	if _phase == _PHASE_RUNNING:
		_move(_now(), _server)

# Ends all links and the allocation, at once.
func close():
	if _phase == _PHASE_RUNNING and _nonce_used:
		for i in range(CLOSES):
			for peer in _peers.values():
				_transmit({"type": Message.DISCONNECT, "from": _ticket.id, "to": peer.id})
		for i in range(CLOSES):
			_transmit({"type": Message.CLOSE, "from": _ticket.id})
	_stop()

func is_host():
	return _ticket.host_data.size() == 0

func is_bound():
	return _phase == _PHASE_RUNNING and _bound and not _bind.active

func is_over():
	return _phase == _PHASE_OVER

# The ids of the peers that have a link, as far as this side knows.
func peers():
	var open = []
	for name in _peers:
		if _peers[name].leaving == null:
			open.append(name)
	return open

# The round trip of the newest PING, in ms; 0 before the first.
func rtt():
	return _rtt

static func reason(code):
	match code:
		NONE: return ""
		HOST_IS_FULL: return "the host is full"
		NO_ANSWER: return "the relay does not answer"
		NONCES_USED_UP: return "the session has bound too often"
		IN_USE: return "another session uses this allocation"
		0: return "the relay does not speak this version of the protocol (ERROR 0)"
		1: return "the allocation has ended after a silence (ERROR 1)"
		2: return "the ticket is not for this player (ERROR 2)"
		3: return "the relay does not know this address (ERROR 3)"
		4: return "the allocation has ended or never was (ERROR 4)"
		5: return "there is no link to the peer (ERROR 5)"
		6: return "the ticket leads to the player itself (ERROR 6)"
	return "ERROR " + str(code)

# Call it in each frame; returns the events in their order.
func poll():
	if _phase == _PHASE_RUNNING:
		_receive()
		var now = _now()
		if _phase == _PHASE_RUNNING:
			_check(now)
		if _phase == _PHASE_RUNNING:
			_send_due(now)
	var events = _events
	_events = []
	return events

func _now():
	return OS.get_ticks_msec()

func _emit(event, peer = "", code = NONE, data = PoolByteArray()):
	_events.append({"event": event, "peer": peer, "code": code, "reason": reason(code), "data": data})

func _end(code):
	_emit(ENDED, "", code)
	_stop()

func _stop():
	_phase = _PHASE_OVER
	_peers = {}
	if _socket != null:
		_socket.close()
		_socket = null

# Sockets.

# Opens a socket to the first server, from an index on, to whose address family this machine has a way. If there is
# none, the present socket remains.
func _open(first):
	for i in range(_ticket.servers.size()):
		var index = (first + i) % _ticket.servers.size()
		var s = PacketPeerUDP.new()
		if s.connect_to_host(_ticket.servers[index][0], _ticket.servers[index][1]) != OK:
			continue
		if _socket != null:
			_socket.close()
		_socket = s
		_server = index
		return true
	return false

func _move(now, first):
	_send_failed = false
	_reopen_at = now + PERIOD
	_open(first)
	_begin_bind(now, now)

func _transmit(m, key = null):
	if _socket.put_packet(Message.encode(m, key)) == OK:
		return OK
	_send_failed = true # The address or the network of this socket has gone, or the relay restarts (ICMP).
	return FAILED

func _receive():
	var count = _socket.get_available_packet_count()
	for i in range(min(count, datagrams_per_poll)):
		var pkt = _socket.get_packet()
		if _socket.get_packet_error() == OK:
			_handle(Message.decode(pkt), _now())
		if _phase != _PHASE_RUNNING:
			return

# Retries: the first repetitions come after a quarter and a half of the period.

func _new_retry():
	return {"active": false, "since": 0, "next": 0, "sends": 0}

func _start_retry(r, now, at):
	r.active = true
	r.since = now
	r.next = at
	r.sends = 0

func _count_send(r, now):
	r.next = now + (PERIOD >> int(max(0, 2 - r.sends)))
	r.sends += 1

# Binds with a new nonce, not before a time. A series that runs keeps its time-out and its socket's turn.
func _begin_bind(now, at):
	_first_nonce = false
	if not _bind.active:
		_bind.since = now
		_turns = 0
		_socket_until = now + _turn()
	_bind.active = true
	_bind.sends = 0
	_bind.next = at

# Ends the session if too many BINDs were refused; called before a series goes on with another nonce. After ERROR 3 the
# next nonce is higher than each that this session has used, so the relay takes it from whatever port a NAT has chosen,
# unless another session of this allocation has bound with it. A lost datagram looks the same, so there must be many, and
# no such nonce that was answered between them. A silence and roam() use up nonces without an answer, and count nothing.
func _check_refused(now):
	if not _first_nonce or _bind.sends == 0:
		return
	_first_nonce = false
	if _refused == 0 or now - _refused_since > REFUSED_WITHIN:
		_refused = 0
		_refused_since = now
	_refused += _bind.sends
	if _refused >= MAX_REFUSED:
		_end(IN_USE)

# A second for each server, then two, then four.
func _turn():
	return PERIOD << int(min(2, _turns / _ticket.servers.size()))

func _begin_connect(now):
	_start_retry(_connect, now, now)
	_connect_sent = false
	_relink = false

func _end_connect():
	_connect.active = false
	_relink = false

# Peers.

func _is_open(peer):
	return _peers.has(peer) and _peers[peer].leaving == null

func _is_leaving():
	for peer in _peers.values():
		if peer.leaving != null:
			return true
	return false

# Adds a peer. One that was silent for a minute makes room: the relay does not report that its allocation has ended.
func _add_peer(name, id, now):
	if _peers.size() >= MAX_PEERS:
		var oldest = ""
		for other in _peers:
			if oldest == "" or _peers[other].heard < _peers[oldest].heard:
				oldest = other
		if now - _peers[oldest].heard < EVICT_AFTER:
			return false
		_peers.erase(oldest)
		_emit(LEFT, oldest)
	_peers[name] = {"id": id, "heard": now, "leaving": null}
	return true

# Messages of the relay.

func _handle(m, now):
	if m.empty():
		return
	if m.type == Message.ERROR:
		if m.code == 0 or m.from.hex_encode() == _own:
			_heard()
			_on_error(m.code, now)
	elif m.type == Message.BIND_RECEIVED:
		_heard()
		_on_bind_received(now)
	elif m.type == Message.REJECTED:
		_heard()
		_fail_connect(HOST_IS_FULL)
	elif m.type == Message.PING:
		if m.from.hex_encode() != _own:
			return
		_heard()
		if _ping_open and m.number == _ping_number:
			_ping_open = false
			_rtt = max(1, now - _ping_sent_at)
	elif m.type == Message.DISCONNECT:
		_heard()
		_on_disconnect(m)
	elif (m.type == Message.ACCEPTED or m.type == Message.RELAY) and m.to.hex_encode() == _own:
		_heard()
		if m.type == Message.RELAY:
			_on_relay(m, now)
		else:
			_on_accepted(m, now)

func _heard():
	_unanswered = 0

func _on_bind_received(now):
	if not _bind.active or _bind.sends == 0:
		return
	_bind.active = false
	if _first_nonce:
		_refused = 0
	_first_nonce = false
	_why_silent = NO_ANSWER
	_ping_at = now
	if not _bound:
		_bound = true
		_emit(BOUND)
	elif _silent:
		_emit(RESUMED)
	_silent = false

func _on_relay(m, now):
	var name = m.from.hex_encode()
	if not _peers.has(name):
		if not is_host() or not _add_peer(name, m.from, now):
			return
		_emit(JOINED, name)
	var peer = _peers[name]
	if peer.leaving == null:
		peer.heard = now
		_emit(MESSAGE, name, NONE, m.data)

func _on_accepted(m, now):
	var name = m.from.hex_encode()
	if not _connect.active or _is_leaving():
		return
	var again = _relink and name == _host
	if _relink and not again: # The connection data leads to another host now.
		_peers.erase(_host)
		_emit(LEFT, _host)
	if not _peers.has(name):
		_add_peer(name, m.from, now)
	_end_connect()
	_host = name
	if not again:
		_emit(CONNECTED, name)

# A DISCONNECT of a peer, or the echo of an own one. An echo that comes twice must not end the link that came after it.
func _on_disconnect(m):
	var echo = m.from.hex_encode() == _own
	var name = (m.to if echo else m.from).hex_encode()
	if not _peers.has(name) or not echo and m.to.hex_encode() != _own:
		return
	var was_open = _is_open(name)
	if echo and was_open:
		return
	_peers.erase(name)
	if was_open:
		if _relink:
			_end_connect()
		_emit(LEFT, name)

func _on_error(code, now):
	if code == 1:
		_end(code)
	elif code == 4: # It speaks of the host if it answers CONNECT_REQUEST, of this player's allocation if BIND.
		if _connect.active and _connect_sent and (not _bind.active or _bind_sent_at < _connect_sent_at):
			_fail_connect(code)
		else:
			_end(code)
	elif code == 0: # Anybody may say so: it explains a silence, and ends nothing.
		_why_silent = code
	elif code == 2 or code == 6:
		_fail_connect(code)
	elif code == 3:
		# The relay does not know this address, as after a restart or behind another address of a NAT. A BIND with
		# a higher nonce says that it is the same player.
		var first = not _bind.active
		if not first:
			# What was sent before the BIND still earns errors for a round trip.
			if _bind.sends == 0 or now - _bind_sent_at < max(REBIND_PAUSE, 2 * _rtt):
				return
			_check_refused(now)
			if _phase != _PHASE_RUNNING:
				return
		_begin_bind(now, max(now, _bind_sent_at + REBIND_PAUSE))
		_first_nonce = first
	elif code == 5 and is_host():
		_emit(NO_LINK, _peers.keys()[0] if _peers.size() == 1 else "", code)
	elif code == 5 and _is_open(_host) and not _connect.active:
		_start_retry(_connect, now, max(now, _connect_sent_at + PERIOD))
		_connect.sends = 2 # Equally far apart from the first on.
		_connect_sent = false
		_relink = true

# Ends a request for a link without one. A link that was to be made again is lost by that.
func _fail_connect(code):
	if not _connect.active:
		return
	var lost = _relink
	_end_connect()
	if lost:
		_peers.erase(_host)
	_emit(LINK_LOST if lost else REFUSED, _host if lost else "", code)

# What time brings.

func _check(now):
	if _bind.active:
		if now - _bind.since >= (REBIND_TIMEOUT if _bound else BIND_TIMEOUT):
			_end(_why_silent)
			return
		if _bound and not _silent and now - _bind.since >= SILENT_PINGS * PERIOD:
			_silent = true
			_emit(SILENT, "", NO_ANSWER)
		if now >= _socket_until:
			_check_refused(now)
			if _phase != _PHASE_RUNNING:
				return
			_turns += 1
			_socket_until = now + _turn()
			_move(now, _server + 1)
	elif now >= _ping_at and _unanswered >= SILENT_PINGS:
		_silent = true
		_emit(SILENT, "", NO_ANSWER)
		_move(now, _server)
	if _send_failed and now >= _reopen_at:
		_move(now, _server)
	if not _connect.active:
		return
	if _bind.active:
		_connect.since = now # The relay's silence says nothing about the link.
	elif now - _connect.since >= (RELINK_TIMEOUT if _relink else CONNECT_TIMEOUT):
		_fail_connect(NO_ANSWER)

func _send_due(now):
	if _bind.active:
		if now >= _bind.next:
			_send_bind(now)
		return
	for name in _peers.keys():
		var leaving = _peers[name].leaving
		if leaving == null or now < leaving.next:
			continue
		if leaving.sends == MAX_DISCONNECTS:
			_peers.erase(name)
			continue
		_count_send(leaving, now)
		_transmit({"type": Message.DISCONNECT, "from": _ticket.id, "to": _peers[name].id})
	# A DISCONNECT that is still repeated would end the new link, too.
	if _connect.active and now >= _connect.next and not _is_leaving():
		_count_send(_connect, now)
		_connect_sent_at = now
		_connect_sent = true
		_transmit({"type": Message.CONNECT_REQUEST, "from": _ticket.id, "data": _ticket.host_data})
	if now >= _ping_at:
		_ping_at = now + PERIOD
		_ping_sent_at = now
		_ping_open = true
		_ping_number = (_ping_number + 1) & 0xFFFF
		_unanswered += 1
		_transmit({"type": Message.PING, "from": _ticket.id, "number": _ping_number})

func _send_bind(now):
	# The first BIND of a series needs a nonce of its own, and so does each few that have no answer, since a NAT may
	# change the endpoint meanwhile.
	if _bind.sends % SENDS_PER_NONCE == 0 and _nonce_used:
		_check_refused(now)
		if _phase != _PHASE_RUNNING:
			return
		if _nonce == 0xFFFF:
			_end(NONCES_USED_UP)
			return
		_nonce += 1
	_nonce_used = true
	_bind_sent_at = now
	_count_send(_bind, now)
	_transmit({"type": Message.BIND, "mode": 0, "number": _nonce, "data": _ticket.data}, _ticket.key)
