-- Sends the requests of a file in turn, and prints the figures. An entry of the file is a size, a line feed and the bytes.
-- Requests are templates: MARK is replaced by a new number each time, starting with FIRST.
-- Arguments: the file, MARK, FIRST.

local templates, at, number = {}, 0, 0

local function split(text, mark)
    local pieces, from = {}, 1
    while true do
        local start, stop = text:find(mark, from, true)
        pieces[#pieces + 1] = text:sub(from, (start or 0) - 1)
        if not start then return pieces end
        from = stop + 1
    end
end

function init(args)
    local file = assert(io.open(args[1], "rb"))
    while true do
        local size = file:read("*l")
        if not size then break end
        templates[#templates + 1] = split(file:read(tonumber(size)), args[2])
    end
    file:close()
    number = tonumber(args[3])
end

function request()
    at, number = at % #templates + 1, number + 1
    return table.concat(templates[at], string.format("%d", number))
end

function done(summary, latency)
    local wrong = summary.errors
    io.write(string.format(
        "figures %d %d %d %d %d %d\n",
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
        wrong.status, wrong.connect + wrong.read + wrong.write + wrong.timeout
    ))
end
