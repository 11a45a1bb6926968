-- NetVM's messages (docs/ABI.md) for Wireshark and tshark:
--
--   tshark -X lua_script:docs/netvm.lua -r target/rig/logs/conformance/wire.pcap
--   tshark -X lua_script:docs/netvm.lua -r CAPTURE -Y 'netvm.kind == 20' -V      (errors, with every field)
--
-- `cargo xtask rig test` leaves such a capture of each scenario; `netvm sim` and the emulator write them too.
-- A test compares the names below with the crate that defines them (tests/rig/harness/src/rig/wire.rs).

local netvm = Proto("netvm", "NetVM")

local kinds = {
    [1] = "Write", [2] = "ReadRequest", [3] = "AtomicRequest", [4] = "Flush", [5] = "Control",
    [16] = "ReadReply", [17] = "AtomicReply", [18] = "FlushReply", [19] = "Ack", [20] = "Error",
    [21] = "Hello", [22] = "HelloAck", [23] = "Probe", [24] = "Bye",
}

local statuses = {
    [0] = "Ok", [1] = "Malformed", [2] = "Unsupported", [3] = "NoSuchNode", [4] = "NoSuchPort",
    [5] = "CapabilityRefused", [6] = "OutOfRange", [7] = "ModeRefused", [8] = "Expired", [9] = "Unmapped",
    [10] = "ReadOnly", [11] = "NoMemory", [12] = "BusError", [13] = "QueueFull", [14] = "LinkLost",
    [15] = "StaleIncarnation", [16] = "LocalAddress", [17] = "NoSuchExport", [18] = "NotAllowed",
    [19] = "TableFull", [20] = "TimedOut", [21] = "CardGone", [22] = "VersionMismatch", [23] = "Revoked", [24] = "HeldBack",
    [25] = "NoPlace",
}

-- Atomics by their opcodes. From 64 on these name a kind of values, of which `WIDE` takes the larger type, and an operation.
local opcodes = {
    [5] = "ExtendLease",
    [16] = "TestAndSet", [17] = "FetchAdd", [18] = "Swap", [19] = "CompareSwap",
    [32] = "Enqueue", [33] = "Dequeue", [34] = "NewHead", [35] = "SemP", [36] = "SemV", [37] = "ResetQueue",
}

local value_kinds = {
    [64] = "U8 or U16", [96] = "I8 or I16", [128] = "U32 or U64", [160] = "I32 or I64", [192] = "F32 or F64",
    [224] = "Complex32",
}

local value_operations = {
    [0] = "Min", [1] = "Max", [2] = "Sum", [3] = "Product", [4] = "LogicalOr", [5] = "LogicalAnd", [6] = "BitOr",
    [7] = "BitAnd", [8] = "LogicalXor", [9] = "BitXor", [10] = "Read", [11] = "Write", [12] = "CompareSwap",
    [13] = "CompareSwapNe", [14] = "CompareSwapLe", [15] = "CompareSwapLt", [16] = "CompareSwapGe",
    [17] = "CompareSwapGt", [18] = "MaskedSwap",
}

for kind, types in pairs(value_kinds) do
    for operation, name in pairs(value_operations) do
        opcodes[kind + operation] = name .. " of " .. types
    end
end

local CHECKSUM = 4
local HEADER = 80
local WIRE_VERSION = 2
local f = netvm.fields
f.checksum = ProtoField.uint32("netvm.checksum", "CRC32C of what follows", base.HEX)
f.magic = ProtoField.string("netvm.magic", "Magic")
f.version = ProtoField.uint8("netvm.version", "Wire version")
f.kind = ProtoField.uint8("netvm.kind", "Kind", base.DEC, kinds)
f.flags = ProtoField.uint8("netvm.flags", "Flags", base.HEX)
f.ack_request = ProtoField.bool("netvm.flags.ack_request", "Acknowledge soon", 8, nil, 0x01)
f.ordered = ProtoField.bool("netvm.flags.ordered", "Ordered", 8, nil, 0x02)
f.wide = ProtoField.bool("netvm.flags.wide", "Atomic on 64 bits, or the larger type", 8, nil, 0x04)
f.regardless = ProtoField.bool("netvm.flags.regardless", "Notify though earlier messages failed", 8, nil, 0x08)
f.append = ProtoField.bool("netvm.flags.append", "Append to a shared queue", 8, nil, 0x10)
f.numbered = ProtoField.bool("netvm.flags.numbered", "Answer with a number of its own", 8, nil, 0x20)
f.refused = ProtoField.bool("netvm.flags.refused", "No window for a request", 8, nil, 0x40)
f.status = ProtoField.uint8("netvm.status", "Status", base.DEC, statuses)
f.opcode = ProtoField.uint8("netvm.opcode", "Atomic opcode", base.DEC, opcodes)
f.len = ProtoField.uint16("netvm.len", "Payload bytes")
f.source = ProtoField.uint16("netvm.src", "Source node")
f.destination = ProtoField.uint16("netvm.dst", "Destination node")
f.source_port = ProtoField.uint16("netvm.srcport", "Source port (0: host driver)")
f.destination_port = ProtoField.uint16("netvm.dstport", "Destination port (0: host driver)")
f.source_incarnation = ProtoField.uint32("netvm.src_incarnation", "Source incarnation", base.HEX)
f.destination_incarnation = ProtoField.uint32("netvm.dst_incarnation", "Destination incarnation", base.HEX)
f.seq = ProtoField.uint32("netvm.seq", "Sequence number")
f.notification = ProtoField.uint32("netvm.notification", "Notification")
f.address = ProtoField.uint64("netvm.address", "Address", base.HEX)
f.capability = ProtoField.uint32("netvm.capability", "Capability slot", base.HEX)
f.op = ProtoField.uint32("netvm.op", "Operation")
f.secret = ProtoField.uint64("netvm.secret", "Capability secret", base.HEX)
f.reply = ProtoField.uint16("netvm.reply", "Reply slot", base.HEX)
f.epoch = ProtoField.uint16("netvm.epoch", "Error epoch")
f.stamp = ProtoField.uint32("netvm.stamp", "Stamp (ticks of 64 ns)")
f.operand = ProtoField.uint64("netvm.operand", "Operand", base.HEX)
f.compare = ProtoField.uint64("netvm.compare", "Compare", base.HEX)
f.answer = ProtoField.uint32("netvm.answer", "Number of the answer")
f.requests_next = ProtoField.uint32("netvm.ack.requests.next", "Lowest request not received")
f.requests_from = ProtoField.uint32("netvm.ack.requests.from", "Request of the first bit")
f.requests_beyond = ProtoField.uint64("netvm.ack.requests.beyond", "Requests received from there", base.HEX)
f.requests_ended = ProtoField.uint16("netvm.ack.requests.ended", "Requests from there that have landed, if received")
f.answers_next = ProtoField.uint32("netvm.ack.answers.next", "Lowest answer not received")
f.answers_from = ProtoField.uint32("netvm.ack.answers.from", "Answer of the first bit")
f.answers_beyond = ProtoField.uint64("netvm.ack.answers.beyond", "Answers received from there", base.HEX)
f.echo = ProtoField.uint32("netvm.ack.echo", "Stamp of the last frame")
f.held = ProtoField.uint32("netvm.ack.held", "Held for (ticks of 64 ns; 4294967295: no frame yet)")
f.repeats = ProtoField.uint32("netvm.ack.repeats", "Messages that came again")
f.payload = ProtoField.bytes("netvm.payload", "Payload")

-- Offset, length and field of what every kind has.
local plain = {
    { 6, 2, "len" }, { 8, 2, "source" }, { 10, 2, "destination" }, { 12, 2, "source_port" },
    { 14, 2, "destination_port" }, { 16, 4, "source_incarnation" }, { 20, 4, "destination_incarnation" },
    { 24, 4, "seq" }, { 60, 4, "stamp" },
}

-- What all kinds but an Ack have.
local message = {
    { 28, 4, "notification" }, { 32, 8, "address" }, { 40, 4, "capability" }, { 44, 4, "op" },
    { 48, 8, "secret" }, { 56, 2, "reply" }, { 58, 2, "epoch" }, { 64, 8, "operand" }, { 72, 8, "compare" },
}

-- What an Ack says has been received.
local receipt = {
    { 28, 4, "requests_next" }, { 32, 8, "requests_beyond" }, { 40, 4, "answers_next" }, { 44, 4, "echo" },
    { 48, 4, "held" }, { 52, 4, "repeats" }, { 64, 8, "answers_beyond" }, { 72, 4, "requests_from" },
    { 76, 4, "answers_from" }, { 58, 2, "requests_ended" },
}

local function is_message(frame)
    return frame:len() >= CHECKSUM + HEADER and frame(CHECKSUM, 2):string() == "NV"
end

function netvm.dissector(frame, pinfo, tree)
    if not is_message(frame) then
        return 0
    end
    local buffer = frame(CHECKSUM):tvb()
    local kind, status, len = buffer(3, 1):uint(), buffer(5, 1):uint(), buffer(6, 2):le_uint()
    local name = kinds[kind] or ("kind " .. kind)
    local top = tree:add(netvm, buffer(0, math.min(HEADER + len, buffer:len())), "NetVM " .. name)
    top:add_le(f.checksum, frame(0, CHECKSUM))
    top:add(f.magic, buffer(0, 2))
    top:add(f.version, buffer(2, 1))
    top:add(f.kind, buffer(3, 1))
    local flags = top:add(f.flags, buffer(4, 1))
    flags:add(f.ack_request, buffer(4, 1))
    flags:add(f.ordered, buffer(4, 1))
    flags:add(f.wide, buffer(4, 1))
    flags:add(f.regardless, buffer(4, 1))
    flags:add(f.append, buffer(4, 1))
    flags:add(f.numbered, buffer(4, 1))
    flags:add(f.refused, buffer(4, 1))
    top:add(name == "AtomicRequest" and f.opcode or f.status, buffer(5, 1))
    local numbered = kind >= 16 and name ~= "Ack" and math.floor(buffer(4, 1):uint() / 0x20) % 2 == 1
    for _, parts in ipairs({ plain, name == "Ack" and receipt or message }) do
        for _, part in ipairs(parts) do
            local field = part[3]
            if field == "capability" and numbered then
                field = "answer"
            end
            top:add_le(f[field], buffer(part[1], part[2]))
        end
    end
    if len > 0 and buffer:len() >= HEADER + len then
        top:add(f.payload, buffer(HEADER, len))
    end

    pinfo.cols.protocol = "NetVM"
    local text = string.format("%s %d:%d > %d:%d seq %d", name, buffer(8, 2):le_uint(), buffer(12, 2):le_uint(),
        buffer(10, 2):le_uint(), buffer(14, 2):le_uint(), buffer(24, 4):le_uint())
    if len > 0 then
        text = text .. string.format(", %d bytes", len)
    end
    if name == "Ack" then
        text = text .. string.format(", received to %d, answers to %d", buffer(28, 4):le_uint(), buffer(40, 4):le_uint())
    elseif buffer(28, 4):le_uint() ~= 0 then
        text = text .. string.format(", notify %d", buffer(28, 4):le_uint())
    end
    if numbered then
        text = text .. string.format(", answer %d", buffer(40, 4):le_uint())
    end
    if name ~= "AtomicRequest" and status ~= 0 then
        text = text .. ", " .. (statuses[status] or ("status " .. status))
    end
    pinfo.cols.info = text
    return CHECKSUM + HEADER + len
end

-- By their first bytes: the node table says which UDP port a node listens on.
netvm:register_heuristic("udp", function(frame, pinfo, tree)
    if not is_message(frame) or frame(CHECKSUM + 2, 1):uint() ~= WIRE_VERSION then
        return false
    end
    netvm.dissector(frame, pinfo, tree)
    return true
end)
