-- Dissectors for Wireshark and tshark: the messages between players and a Ferry relay
-- ("ferry"), and the connection layer of Unity Transport 2.x ("utp"), in RELAY payloads or
-- directly over UDP. docs/operating.md has the installation. The layouts are those of
-- proto/doc.go and internal/utp.
--
-- A packet may be cut off by the snap length of its capture. Messages are therefore checked
-- against the reported length, and only captured bytes are read.

local ferry = Proto("ferry", "Ferry relay (Unity Relay message protocol)")
local utp = Proto("utp", "Unity Transport 2.x")

-- Unity Transport 2.x.

local handshakes = { [1] = "request", [2] = "accept" }
local kinds = { [1] = "data", [2] = "disconnect", [3] = "heartbeat", [4] = "MTU check", [5] = "MTU ack" }

local u = {
	signature = ProtoField.string("utp.signature", "Signature"),
	version = ProtoField.uint8("utp.version", "Version"),
	handshake = ProtoField.uint8("utp.handshake", "Handshake", base.DEC, handshakes),
	kind = ProtoField.uint8("utp.kind", "Kind", base.DEC, kinds),
	token = ProtoField.bytes("utp.token", "Token"),
	pipeline = ProtoField.uint8("utp.pipeline", "Pipeline"),
	length = ProtoField.uint16("utp.length", "Length"),
	size = ProtoField.uint16("utp.mtu_size", "Size of the datagram"),
	-- Nothing in a data packet names the stages of its pipeline, so their headers are a part
	-- of the payload.
	payload = ProtoField.bytes("utp.payload", "Stage headers and payload"),
}
utp.fields = u
local utp_length = ProtoExpert.new("utp.length_mismatch", "The length does not match the packet", expert.group.MALFORMED, expert.severity.ERROR)
utp.experts = { utp_length }

-- Connections of Unity Transport by their token, 8 random bytes that begin every packet
-- after the handshake. Such a packet has no signature, so a token is what identifies it.
local tokens = {}
function utp.init() tokens = {} end

local function is_handshake(tvb)
	return tvb:captured_len() >= 13 and tvb(0, 3):string() == "UTP" and tvb(3, 1):uint() == 1 and
		handshakes[tvb(4, 1):uint()] ~= nil
end

-- utp_recognized reports whether tvb is a handshake, or has a token of one. With assume, the
-- token may be unknown.
local function utp_recognized(tvb, assume)
	if is_handshake(tvb) then return true end
	if tvb:captured_len() < 9 or not kinds[tvb(0, 1):uint()] then return false end
	return assume or tokens[tvb(1, 8):bytes():tohex()] ~= nil
end

local function add_payload(tree, tvb, offset)
	if tvb:captured_len() > offset then tree:add(u.payload, tvb(offset)) end
end

-- check_packet adds expert info unless the packet has want bytes.
local function check_packet(tree, length, want)
	if want ~= length then
		tree:add_proto_expert_info(utp_length, string.format("The packet has %d bytes, not %d", length, want))
	end
end

local function dissect_handshake(tvb, tree, length)
	tree:add(u.signature, tvb(0, 3))
	tree:add(u.version, tvb(3, 1))
	tree:add(u.handshake, tvb(4, 1))
	tree:add(u.token, tvb(5, 8))
	tokens[tvb(5, 8):bytes():tohex()] = true
	if length > 13 then
		if tvb:captured_len() >= 15 then
			tree:add_le(u.length, tvb(13, 2))
			add_payload(tree, tvb, 15)
			check_packet(tree, length, 15 + tvb(13, 2):le_uint())
		elseif length < 15 then
			check_packet(tree, length, 15)
		end
	end
	return handshakes[tvb(4, 1):uint()]
end

local function dissect_packet(tvb, tree, length)
	local kind = tvb(0, 1):uint()
	tree:add(u.kind, tvb(0, 1))
	tree:add(u.token, tvb(1, 8))
	if kind == 1 then
		if tvb:captured_len() >= 10 then
			tree:add(u.pipeline, tvb(9, 1))
			add_payload(tree, tvb, 10)
		elseif length < 10 then
			check_packet(tree, length, 10)
		end
	elseif kind == 4 or kind == 5 then
		if tvb:captured_len() >= 11 then
			tree:add_le(u.length, tvb(9, 2))
			check_packet(tree, length, 11 + tvb(9, 2):le_uint())
			if kind == 5 and tvb:captured_len() >= 13 then tree:add_le(u.size, tvb(11, 2)) end
		elseif length < 11 then
			check_packet(tree, length, 11)
		end
	else
		check_packet(tree, length, 9)
	end
	return kinds[kind]
end

-- dissect_transport dissects a packet of length bytes for which utp_recognized holds. The
-- tvb of a payload does not know its reported length. inside is set in a RELAY, whose Info
-- column is kept.
local function dissect_transport(tvb, length, pinfo, root, inside)
	local tree = root:add(utp, tvb())
	local name = is_handshake(tvb) and dissect_handshake(tvb, tree, length) or dissect_packet(tvb, tree, length)
	tree:append_text(", " .. name)
	if inside then
		pinfo.cols.info:append(", UTP " .. name)
	else
		pinfo.cols.protocol = "UTP"
		pinfo.cols.info = name
	end
	return tvb:captured_len()
end

-- For "Decode as", where the user says that these are packets of this protocol.
function utp.dissector(tvb, pinfo, root)
	if not utp_recognized(tvb, true) then return 0 end
	return dissect_transport(tvb, tvb:reported_len(), pinfo, root)
end

utp:register_heuristic("udp", function(tvb, pinfo, root)
	if not utp_recognized(tvb, false) then return false end
	dissect_transport(tvb, tvb:reported_len(), pinfo, root)
	return true
end)

-- The relay.

local SIGNATURE = 0xDA72
local HEADER_LEN, ID_LEN, MAC_LEN = 4, 16, 32
local MAX_RELAY_LEN = 1472

local types = {
	[0] = "BIND", [1] = "BIND_RECEIVED", [2] = "PING", [3] = "CONNECT_REQUEST", [6] = "ACCEPTED",
	[8] = "REJECTED", [9] = "DISCONNECT", [10] = "RELAY", [11] = "CLOSE", [12] = "ERROR",
}
local error_codes = {
	[0] = "version not supported", [1] = "timed out", [2] = "unauthorized", [3] = "endpoint mismatch",
	[4] = "allocation not found", [5] = "not connected", [6] = "connect to self",
}
local qos_kinds = { [0x59] = "request", [0x95] = "response" }

local f = {
	signature = ProtoField.uint16("ferry.signature", "Signature", base.HEX),
	version = ProtoField.uint8("ferry.version", "Version"),
	type = ProtoField.uint8("ferry.type", "Type", base.DEC, types),
	-- Every allocation id of a message, so that one filter finds all messages of an allocation.
	allocation = ProtoField.guid("ferry.allocation", "Allocation"),
	from = ProtoField.guid("ferry.from", "From"),
	to = ProtoField.guid("ferry.to", "To"),
	mode = ProtoField.uint8("ferry.accept_mode", "Accept mode"),
	nonce = ProtoField.uint16("ferry.nonce", "Nonce"),
	data_length = ProtoField.uint8("ferry.connection_data_length", "Connection data length"),
	data = ProtoField.bytes("ferry.connection_data", "Connection data"),
	mac = ProtoField.bytes("ferry.mac", "MAC (HMAC-SHA256)"),
	number = ProtoField.uint16("ferry.number", "Number"),
	payload_length = ProtoField.uint16("ferry.payload_length", "Payload length"),
	payload = ProtoField.bytes("ferry.payload", "Payload"),
	code = ProtoField.uint8("ferry.error_code", "Error code", base.DEC, error_codes),
	rest = ProtoField.bytes("ferry.unexpected", "Unexpected bytes"),
	qos = ProtoField.uint8("ferry.qos", "QoS probe", base.HEX, qos_kinds),
	qos_title_length = ProtoField.uint8("ferry.qos.title_length", "Title length, plus 1"),
	qos_title = ProtoField.bytes("ferry.qos.title", "Title"),
	qos_sequence = ProtoField.uint8("ferry.qos.sequence", "Sequence"),
	qos_id = ProtoField.uint16("ferry.qos.id", "Id"),
	qos_time = ProtoField.uint64("ferry.qos.time", "Time of the client"),
}
ferry.fields = f

local ferry_experts = {
	length = ProtoExpert.new("ferry.length_mismatch", "The length does not match the message", expert.group.MALFORMED, expert.severity.ERROR),
	version = ProtoExpert.new("ferry.unknown_version", "The version is not 0", expert.group.PROTOCOL, expert.severity.WARN),
	type = ProtoExpert.new("ferry.unknown_type", "The type is reserved or unknown", expert.group.PROTOCOL, expert.severity.WARN),
	fatal = ProtoExpert.new("ferry.fatal_error", "The game of a Unity client ends on this error", expert.group.RESPONSE_CODE, expert.severity.WARN),
	redacted = ProtoExpert.new("ferry.redacted", "Connection data and MAC are zero: a capture of Ferry removed them", expert.group.COMMENTS_GROUP, expert.severity.CHAT),
}
ferry.experts = ferry_experts

ferry.prefs.ports = Pref.range("UDP ports", "7777", "UDP ports of relays; QoS probes are shown on these ports only", 65535)
ferry.prefs.transport = Pref.enum("Transport header in RELAY payloads", 1,
	"When to show a RELAY payload as a packet of Unity Transport 2.x",
	{ { 1, "Connections whose handshake is in the capture", 1 }, { 2, "Always", 2 }, { 3, "Never", 3 } }, false)

-- add adds the part of a field that was captured. Numbers and ids are only added whole.
-- It returns the tree item, or nil.
local function add(tree, field, tvb, offset, len, little_endian)
	local captured = tvb:captured_len() - offset
	if len <= 0 or captured <= 0 then return nil end
	if captured < len then
		if field ~= f.data and field ~= f.mac and field ~= f.payload and field ~= f.rest then return nil end
		len = captured
	end
	if little_endian then return tree:add_le(field, tvb(offset, len)) end
	return tree:add(field, tvb(offset, len))
end

-- add_id adds an allocation id and returns its first 8 digits for the Info column.
local function add_id(tree, field, tvb, offset)
	local item = add(tree, field, tvb, offset, ID_LEN)
	if not item then return "?" end
	if field ~= f.allocation then
		tree:add(f.allocation, tvb(offset, ID_LEN)):set_hidden()
	end
	return tvb(offset, 4):bytes():tohex(true)
end

local function uint8(tvb, offset)
	if offset < tvb:captured_len() then return tvb(offset, 1):uint() end
end

local function is_zero(tvb, offset, len)
	len = math.min(len, tvb:captured_len() - offset)
	return len > 0 and tvb(offset, len):bytes():tohex():find("^0+$") ~= nil
end

-- Each function below dissects the messages of one type: it adds the fields and returns the
-- length that the message should have, or nil if the capture lacks the length field, and
-- text for the Info column.
local dissect = {}

dissect[0] = function(tvb, _, tree) -- BIND
	add(tree, f.mode, tvb, 4, 1)
	add(tree, f.nonce, tvb, 5, 2, true)
	add(tree, f.data_length, tvb, 7, 1)
	local n = uint8(tvb, 7)
	if not n then return tvb:reported_len() < 8 and 8 + MAC_LEN or nil, "" end
	add(tree, f.data, tvb, 8, n)
	add(tree, f.mac, tvb, 8 + n, MAC_LEN)
	if is_zero(tvb, 8, n + MAC_LEN) then tree:add_proto_expert_info(ferry_experts.redacted) end
	local nonce = " nonce=" .. tvb(5, 2):le_uint()
	return 8 + n + MAC_LEN, nonce
end

dissect[1] = function() return HEADER_LEN, "" end -- BIND_RECEIVED

dissect[2] = function(tvb, _, tree) -- PING
	local id = add_id(tree, f.allocation, tvb, 4)
	add(tree, f.number, tvb, 20, 2, true)
	return HEADER_LEN + ID_LEN + 2, " " .. id
end

dissect[3] = function(tvb, _, tree) -- CONNECT_REQUEST
	local id = add_id(tree, f.allocation, tvb, 4)
	add(tree, f.data_length, tvb, 20, 1)
	local n = uint8(tvb, 20)
	if not n then return tvb:reported_len() < 21 and 21 or nil, " " .. id end
	add(tree, f.data, tvb, 21, n)
	if is_zero(tvb, 21, n) then tree:add_proto_expert_info(ferry_experts.redacted) end
	return 21 + n, " " .. id
end

-- pair dissects what begins with two ids.
local function pair(tvb, _, tree)
	local from = add_id(tree, f.from, tvb, 4)
	local to = add_id(tree, f.to, tvb, 20)
	return HEADER_LEN + 2 * ID_LEN, " " .. from .. " > " .. to
end
dissect[6], dissect[8], dissect[9] = pair, pair, pair -- ACCEPTED, REJECTED, DISCONNECT

dissect[10] = function(tvb, _, tree) -- RELAY
	local _, info = pair(tvb, nil, tree)
	add(tree, f.payload_length, tvb, 36, 2)
	if tvb:captured_len() < 38 then return tvb:reported_len() < 38 and 38 or nil, info end
	local n = tvb(36, 2):uint()
	add(tree, f.payload, tvb, 38, n)
	return 38 + n, info .. " " .. n .. " bytes"
end

dissect[11] = function(tvb, _, tree) -- CLOSE
	return HEADER_LEN + ID_LEN, " " .. add_id(tree, f.allocation, tvb, 4)
end

dissect[12] = function(tvb, _, tree) -- ERROR
	local id = add_id(tree, f.allocation, tvb, 4)
	local item = add(tree, f.code, tvb, 20, 1)
	local code = uint8(tvb, 20)
	if code == 1 or code == 4 then item:add_proto_expert_info(ferry_experts.fatal) end
	return HEADER_LEN + ID_LEN + 1, " " .. id .. (code and " " .. code .. " (" .. (error_codes[code] or "unknown code") .. ")" or "")
end

-- check_length adds what is wrong with the length of a message, and the bytes after its end.
local function check_length(tvb, tree, want)
	local have = tvb:reported_len()
	if not want or have == want then return true end
	tree:add_proto_expert_info(ferry_experts.length, string.format("The message has %d bytes, not %d", have, want))
	add(tree, f.rest, tvb, want, have - want)
	return false
end

local function dissect_message(tvb, pinfo, root)
	local number = tvb(3, 1):uint()
	local name = types[number] or "TYPE(" .. number .. ")"
	local tree = root:add(ferry, tvb(), "Ferry, " .. name)
	tree:add(f.signature, tvb(0, 2))
	local version = tree:add(f.version, tvb(2, 1))
	local item = tree:add(f.type, tvb(3, 1))
	pinfo.cols.protocol = "Ferry"
	pinfo.cols.info = name

	if tvb(2, 1):uint() ~= 0 then
		version:add_proto_expert_info(ferry_experts.version)
		add(tree, f.rest, tvb, HEADER_LEN, tvb:reported_len() - HEADER_LEN)
		return tvb:captured_len()
	end
	if not dissect[number] then
		item:add_proto_expert_info(ferry_experts.type)
		add(tree, f.rest, tvb, HEADER_LEN, tvb:reported_len() - HEADER_LEN)
		return tvb:captured_len()
	end
	local want, info = dissect[number](tvb, pinfo, tree)
	pinfo.cols.info:append(info)
	local valid = check_length(tvb, tree, want)
	if number ~= 10 then return tvb:captured_len() end
	if tvb:reported_len() > MAX_RELAY_LEN then
		tree:add_proto_expert_info(ferry_experts.length, "The message is longer than " .. MAX_RELAY_LEN .. " bytes")
	elseif valid and want and want > 38 and tvb:captured_len() > 38 then
		local payload = tvb(38):tvb()
		if ferry.prefs.transport ~= 3 and utp_recognized(payload, ferry.prefs.transport == 2) then
			dissect_transport(payload, tvb:reported_len() - 38, pinfo, root, true)
		end
	end
	return tvb:captured_len()
end

-- qos_length returns the length of a QoS probe that begins as tvb does, or nil.
local function qos_length(tvb)
	if tvb:captured_len() < 3 or tvb(1, 1):uint() >= 16 then return nil end
	local magic = tvb(0, 1):uint()
	if magic == 0x95 then return 13 end
	if magic == 0x59 and tvb(2, 1):uint() > 0 then return 13 + tvb(2, 1):uint() end
end

local function dissect_qos(tvb, pinfo, root)
	local kind = qos_kinds[tvb(0, 1):uint()]
	local tree = root:add(ferry, tvb(), "Ferry, QoS " .. kind)
	tree:add(f.qos, tvb(0, 1))
	local offset = 2
	if kind == "request" then
		local n = tvb(2, 1):uint() - 1
		tree:add(f.qos_title_length, tvb(2, 1))
		add(tree, f.qos_title, tvb, 3, n)
		offset = 3 + n
	end
	add(tree, f.qos_sequence, tvb, offset, 1)
	add(tree, f.qos_id, tvb, offset + 1, 2, true)
	add(tree, f.qos_time, tvb, offset + 3, 8, true)
	pinfo.cols.protocol = "Ferry"
	pinfo.cols.info = "QoS " .. kind
	return tvb:captured_len()
end

local function has_signature(tvb)
	return tvb:captured_len() >= HEADER_LEN and tvb(0, 2):uint() == SIGNATURE
end

-- The dissector of the ports in the preferences and of "Decode as". It leaves datagrams of
-- other protocols to other dissectors.
function ferry.dissector(tvb, pinfo, root)
	if has_signature(tvb) then return dissect_message(tvb, pinfo, root) end
	if qos_length(tvb) == tvb:reported_len() then return dissect_qos(tvb, pinfo, root) end
	if utp_recognized(tvb, false) then return dissect_transport(tvb, tvb:reported_len(), pinfo, root) end
	return 0
end

-- On other ports, the signature alone is not enough: version and type are checked too.
ferry:register_heuristic("udp", function(tvb, pinfo, root)
	if not has_signature(tvb) or tvb(2, 1):uint() ~= 0 or not types[tvb(3, 1):uint()] then return false end
	dissect_message(tvb, pinfo, root)
	return true
end)

-- Registration at the ports of the preferences.
local udp_ports = DissectorTable.get("udp.port")
local registered = ferry.prefs.ports
if registered ~= "" then udp_ports:add(registered, ferry) end
udp_ports:add_for_decode_as(ferry)
udp_ports:add_for_decode_as(utp)

function ferry.prefs_changed()
	if registered == ferry.prefs.ports then return end
	if registered ~= "" then udp_ports:remove(registered, ferry) end
	registered = ferry.prefs.ports
	if registered ~= "" then udp_ports:add(registered, ferry) end
end
