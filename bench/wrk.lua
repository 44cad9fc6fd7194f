-- Sends the requests of a file in turn: each is told by its size, a line feed and its bytes. Prints what came of it.

local requests, at = {}, 0

function init(args)
    local file = assert(io.open(args[1], "rb"))
    while true do
        local size = file:read("*l")
        if not size then break end
        requests[#requests + 1] = file:read(tonumber(size))
    end
    file:close()
end

function request()
    at = at % #requests + 1
    return requests[at]
end

function done(summary, latency)
    local wrong = summary.errors
    io.write(string.format(
        "figures %d %d %d %d %d %d\n",
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
        wrong.status, wrong.connect + wrong.read + wrong.write + wrong.timeout
    ))
end
