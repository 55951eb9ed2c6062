# The session's rules against a scripted relay and clock; godot_test.go runs it.
extends SceneTree

const Message = preload("../ferry_message.gd")
const Session = preload("../ferry_session.gd")

# A session without a socket.
class Fake:
	extends "../ferry_session.gd"
	var clock = 0
	var sockets = 0
	var sent = []  # [clock, socket, message]
	var inbox = []

	func _now():
		return clock

	func _open(first):
		sockets += 1
		_server = first % _ticket.servers.size()
		return true

	func _transmit(m, _key = null):
		sent.append([clock, sockets, m])
		return OK

	func _receive():
		var all = inbox
		inbox = []
		for m in all:
			_handle(m, clock)

	# Passes a time, and returns the events.
	func run(ms):
		var all = []
		for i in range(ms / 10):
			clock += 10
			all += poll()
		return all

	func take(m):
		inbox.append(m)
		return run(10)

	# The messages of a type, of the last ms.
	func sent_of(type, ms = 1000000):
		var all = []
		for s in sent:
			if s[2].type == type and s[0] > clock - ms:
				all.append(s)
		return all

var own = filled(1)
var host = filled(2)
var failed = 0

func filled(byte, size = 16):
	var all = PoolByteArray()
	for i in range(size):
		all.append(byte)
	return all

func check(ok, what):
	if not ok:
		failed += 1
		print("rules wrong: ", what)

func kinds(events):
	var all = []
	for e in events:
		all.append(e.event)
	return all

func begin(is_host, bound = true):
	var s = Fake.new()
	var data = filled(9, 255)
	check(s.start({"id": own, "key": filled(3, 64), "data": data, "host_data": PoolByteArray() if is_host else data,
		"servers": [["192.0.2.1", 1], ["192.0.2.2", 1]]}) == OK, "start")
	if bound:
		s.run(10)
		check(kinds(s.take({"type": Message.BIND_RECEIVED})) == [Session.BOUND], "bound")
	return s

func linked():
	var s = begin(false)
	check(s.connect_host() == OK, "connect")
	s.run(10)
	check(kinds(s.take({"type": Message.ACCEPTED, "from": host, "to": own})) == [Session.CONNECTED], "connected")
	return s

# Passes a time in which PINGs are answered.
func live(s, ms):
	var all = []
	for i in range(ms / 10):
		if s._ping_open:
			s.inbox.append({"type": Message.PING, "from": own, "number": s._ping_number})
		all += s.run(10)
	return all

func error(code, id = own):
	return {"type": Message.ERROR, "from": id, "code": code}

func _init():
	first_bind()
	mismatch()
	in_use()
	silence()
	links()
	refusals()
	peers()
	nonces()
	garbage()
	print("rules ok" if failed == 0 else "rules failed")
	quit()

func first_bind():
	var s = begin(true, false)
	var events = s.run(9900)
	check(events == [], "events before the time-out")
	var nonce_of = {}
	var last = -1
	for b in s.sent_of(Message.BIND):
		check(nonce_of.get(b[1], b[2].number) <= b[2].number, "a nonce falls")
		if not nonce_of.has(b[1]):
			check(b[2].number > last, "another socket repeats a nonce")
		nonce_of[b[1]] = b[2].number
		last = b[2].number
	check(s.sockets >= 4 and s.sockets <= 6, "sockets: %d" % s.sockets)
	check(s.sent_of(Message.BIND).size() < 30, "it binds too often")
	events = s.run(200)
	check(kinds(events) == [Session.ENDED] and events[0].code == Session.NO_ANSWER, "bind time-out")
	check(s.is_over() and s.send("", PoolByteArray()) == ERR_UNAVAILABLE, "over")
	s = begin(true, false)
	s.take(error(0, filled(0)))
	events = s.run(11000)
	check(kinds(events) == [Session.ENDED] and events[0].code == 0, "ERROR 0 explains the time-out")
	s = begin(true)
	s.take(error(0, filled(0)))
	s.take(error(3))
	s.run(200)
	s.take({"type": Message.BIND_RECEIVED})
	events = s.run(70000)
	check(kinds(events) == [Session.SILENT, Session.ENDED] and events[1].code == Session.NO_ANSWER, "an old ERROR 0 explains nothing")
	s = begin(true, false)
	s.run(10)
	check(kinds(s.take(error(4))) == [Session.ENDED], "ERROR 4 answers BIND")

func mismatch():
	var s = begin(true)
	live(s, 5000)
	var before = s.sent_of(Message.BIND)
	var sockets = s.sockets
	for i in range(10):
		s.take(error(3))
	var after = s.sent_of(Message.BIND)
	check(after.size() == before.size() + 1, "ten ERROR 3: %d BINDs" % (after.size() - before.size()))
	check(after[-1][2].number > before[-1][2].number, "the nonce is greater")
	check(s.take({"type": Message.BIND_RECEIVED}) == [] and s.sockets == sockets and s.is_bound(), "bound again in silence")
	check(live(s, 5000) == [], "then nothing happens")
	s.take(error(3, filled(7)))
	check(s.is_bound(), "an ERROR of another id")

# The session learns that it has lost its endpoint. Its BINDs are answered, but for those with its next nonces, of which
# there are so many, and so many besides. Returns the events until it is bound or has ended.
func lose_endpoint(s, refused_nonces, lost):
	var last = s._nonce
	s.sent = []
	var events = live(s, 1000) + s.take(error(3))
	var seen = 0
	while not s.is_over() and not s.is_bound():
		events += s.run(10)
		var binds = s.sent_of(Message.BIND)
		for b in range(seen, binds.size()):
			if binds[b][2].number <= last + refused_nonces:
				continue
			if lost > 0:
				lost -= 1
				continue
			s.inbox.append({"type": Message.BIND_RECEIVED})
		seen = binds.size()
	return events

# Only another session makes the relay refuse the nonce after a session's last one.
func in_use():
	var s = begin(true)
	var events = []
	var losses = 0
	while not s.is_over() and losses < 10:
		losses += 1
		events += lose_endpoint(s, 1, 0)
		live(s, 3000)
	check(losses == 4 and kinds(events) == [Session.ENDED], "another session: %d losses" % losses)
	check(events[0].code == Session.IN_USE and events[0].reason == "another session uses this allocation", "the reason")
	check(s.sent_of(Message.BIND).size() == 3, "it takes the endpoint once more")
	s = begin(true) # behind a NAT that moves it each 5 s, where datagrams are lost
	for i in range(24):
		check(lose_endpoint(s, 0, i % 4) == [], "a NAT")
		live(s, 4000)
	for i in range(10): # seldom
		check(lose_endpoint(s, 1, 0) == [], "seldom")
		live(s, 20000)
	for refused in [1, 1, 1, 0, 1, 1]: # one was answered between
		check(lose_endpoint(s, refused, 0) == [], "answered between")

func silence():
	var s = begin(true)
	check(live(s, 20000) == [] and s.sockets == 1, "PINGs keep it alive")
	check(s.sent_of(Message.PING, 10000).size() == 10, "a PING each second")
	check(s.rtt() > 0, "round trip")
	var events = s.run(2500)
	check(events == [], "no silence before three PINGs")
	events = s.run(2000)
	check(kinds(events) == [Session.SILENT] and s.sockets >= 2, "silent, from a new socket")
	events = s.run(57000)
	check(events == [], "silence is told once")
	events = s.run(2500)
	check(kinds(events) == [Session.ENDED], "it ends after a minute")
	s = begin(true)
	live(s, 1000)
	s.run(5000)
	check(kinds(s.take({"type": Message.BIND_RECEIVED})) == [Session.RESUMED], "resumed")
	live(s, 1000)
	# A game that does not call poll() for a while, as while it loads, has not been left by its relay.
	s.clock += 8000
	check(live(s, 3000) == [], "a pause of the game")

func links():
	var s = linked()
	live(s, 5000)
	s.sent = []
	check(s.take(error(5)) == [], "ERROR 5 tells nothing")
	var events = live(s, 4800)
	var asked = s.sent_of(Message.CONNECT_REQUEST)
	check(events == [] and asked.size() == 5, "asked again %d times in 5 s" % asked.size())
	for i in range(1, asked.size()):
		check(asked[i][0] - asked[i - 1][0] >= 1000, "more than once a second")
	events = live(s, 400)
	check(kinds(events) == [Session.LINK_LOST] and events[0].code == Session.NO_ANSWER and events[0].peer == host.hex_encode(), "lost")
	check(s.connect_host() == OK, "connect starts anew")
	s = linked()
	live(s, 2000)
	s.take(error(5))
	live(s, 100)
	check(s.take({"type": Message.ACCEPTED, "from": host, "to": own}) == [] and s.peers() == [host.hex_encode()], "made again")
	live(s, 2000)
	s.take(error(5))
	check(kinds(s.take({"type": Message.ACCEPTED, "from": filled(8), "to": own})) == [Session.LEFT, Session.CONNECTED], "another host")
	s = linked()
	s.take(error(5))
	live(s, 1500)
	asked = s.sent_of(Message.CONNECT_REQUEST)
	check(asked.size() == 2 and asked[1][0] - asked[0][0] >= 1000, "asked again a second after the first request")
	s = linked()
	live(s, 2000)
	s.take(error(5))
	check(kinds(s.run(20000)) == [Session.SILENT], "a silent relay does not lose the link")
	check(kinds(s.take({"type": Message.BIND_RECEIVED}) + live(s, 3000)) == [Session.RESUMED], "nor does its return")
	# The echo of a DISCONNECT comes twice.
	s = linked()
	s.disconnect_peer(host.hex_encode())
	s.run(10)
	s.connect_host()
	s.run(10)
	check(s.sent_of(Message.CONNECT_REQUEST).size() == 1, "no request before the DISCONNECT has its echo")
	var echo = {"type": Message.DISCONNECT, "from": own, "to": host}
	check(s.take(echo) == [], "left")
	s.run(10)
	s.take({"type": Message.ACCEPTED, "from": host, "to": own})
	check(s.take(echo) == [] and s.peers().size() == 1, "a second echo ends nothing")
	check(kinds(s.take({"type": Message.DISCONNECT, "from": host, "to": own})) == [Session.LEFT], "the host leaves")
	# DISCONNECT is repeated, and given up.
	s = linked()
	s.sent = []
	s.disconnect_peer(host.hex_encode())
	check(live(s, 6000) == [] and s.sent_of(Message.DISCONNECT).size() == 4 and s._peers.empty(), "DISCONNECT without an echo")
	s = linked()
	s.sent = []
	s.close()
	check(s.sent_of(Message.DISCONNECT).size() == 3 and s.sent_of(Message.CLOSE).size() == 3 and s.is_over(), "close")

func refusals():
	for c in [[error(2), 2], [error(4), 4], [error(6), 6], [{"type": Message.REJECTED}, Session.HOST_IS_FULL]]:
		var s = begin(false)
		s.connect_host()
		s.run(10)
		var events = s.take(c[0])
		check(kinds(events) == [Session.REFUSED] and events[0].code == c[1] and events[0].reason != "", "refused: %s" % [c])
		check(s.connect_host() == OK, "connect again")
	var s = begin(false)
	s.connect_host()
	check(kinds(live(s, 61000)) == [Session.REFUSED], "connect time-out")
	s = begin(false)
	check(kinds(s.take(error(1))) == [Session.ENDED], "ERROR 1")
	s = begin(true)
	check(s.connect_host() == ERR_UNAVAILABLE, "a host connects to nobody")
	check(kinds(s.take(error(5))) == [Session.NO_LINK], "no link")

func relay(from):
	return {"type": Message.RELAY, "from": from, "to": own, "data": PoolByteArray([1])}

func peers():
	var s = begin(true)
	check(kinds(s.take(relay(host))) == [Session.JOINED, Session.MESSAGE], "joined")
	check(kinds(s.take(relay(host))) == [Session.MESSAGE], "message")
	check(s.take({"type": Message.RELAY, "from": host, "to": filled(5), "data": PoolByteArray()}) == [], "for another player")
	for i in range(10, 9 + Session.MAX_PEERS):
		live(s, 10)
		s.take(relay(filled(i)))
	check(s.peers().size() == Session.MAX_PEERS, "full")
	check(s.take(relay(filled(200))) == [], "no room")
	live(s, 60000)
	var events = s.take(relay(filled(200)))
	check(kinds(events) == [Session.LEFT, Session.JOINED, Session.MESSAGE] and events[0].peer == host.hex_encode(), "the oldest makes room")
	s = begin(false)
	check(s.take(relay(host)) == [], "a joiner without a link")

func nonces():
	var s = Fake.new()
	var data = filled(9, 255)
	s.start({"id": own, "key": filled(3, 64), "data": data, "host_data": PoolByteArray(), "servers": [["192.0.2.1", 1]]}, 65535)
	s.run(10)
	s.take({"type": Message.BIND_RECEIVED})
	s.roam()
	var events = s.run(10)
	check(kinds(events) == [Session.ENDED] and events[0].code == Session.NONCES_USED_UP, "no nonce left")
	for bad in [["id", filled(1, 15)], ["key", filled(1, 63)], ["data", PoolByteArray()], ["data", filled(1, 256)], ["host_data", filled(1, 256)]]:
		var t = {"id": own, "key": filled(3, 64), "data": data, "host_data": data, "servers": [["192.0.2.1", 1]]}
		t[bad[0]] = bad[1]
		check(Fake.new().start(t) == ERR_INVALID_PARAMETER, "a ticket with a wrong %s" % bad[0])

# Random datagrams of the relay: an error of the script would be in the output.
func garbage():
	var random = RandomNumberGenerator.new()
	random.seed = 1
	for i in range(5000):
		var s = linked() if i % 100 == 0 else null
		var pkt = PoolByteArray([0xDA, 0x72, 0, random.randi() % 14])
		for byte in range(random.randi() % 45):
			pkt.append(random.randi() % (256 if byte > 30 else 3))
		if s == null:
			s = begin(i % 2 == 0, i % 3 == 0)
		s._handle(Message.decode(pkt), s.clock)
		s.run(20)
