"""The Redis scripts that reserve and settle a call's quota in one round trip.

All limits of a call are checked and charged in one step, or none, by Redis's clock and with commands of Redis 6.2. A
call is identified by its operation id, so a repeated script counts once. Knows keys and numbers; `limits.py` gives them
meaning.

Keys of a call: the epoch, the account's open calls, then one per item, whose kind, limit and window (ms) follow in the
same order:

  r, t  a window of requests or tokens: hash {n: count, b: start in ms}; starts with its first call
  c     concurrent calls: sorted set of operation ids by the end of their lease, ms
  b     a budget: hash {u: used, r: reserved}

A lease that expires releases the reservation, because its gateway has died.
"""

from __future__ import annotations

import hashlib

EPOCH_KEY = "quota:epoch"

# First number of RESERVE's result; details follow at its end.
NEW_EPOCH, UNKNOWN_BUDGET, REFUSED, RESERVED, RESERVED_BEFORE = -1, -2, 0, 1, 2

# Modes of RESERVE: normal; regardless of the limits; restoring calls that Redis lost, without counting windows; and
# counting without an open call.
NORMAL, FORCED, RESTORE_CALL, COUNT_ONLY = 0, 1, 2, 3

RESERVE = """
local six = '(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)'
local items = #KEYS - 2
local at = 3 * items
local op, epoch, lease, mode, tokens, neurons = string.match(ARGV[at + 1], six)
lease, mode = tonumber(lease), tonumber(mode)
local cost = {r = 1, c = 1, t = tonumber(tokens), b = tonumber(neurons)}
local known = redis.call('GET', KEYS[1])
if known ~= epoch then return '-1 ' .. (known or '') end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local open, held = KEYS[2], KEYS[2] .. ':held'

local is_open = false
if mode ~= 3 then
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', open, '-inf', now, 'LIMIT', 0, 8)) do
    redis.call('ZREM', open, gone)
    local reserved = redis.call('HGET', held, gone)
    if reserved then
      redis.call('HDEL', held, gone)
      for key, amount in string.gmatch(reserved, '(%S+) (%S+)') do
        if redis.call('EXISTS', key) == 1 then redis.call('HINCRBY', key, 'r', 0 - tonumber(amount)) end
      end
    end
  end
  is_open = redis.call('ZSCORE', open, op) and true or false
end

local in_use, left_ms = {}, {}
local refused, wait = 0, -1
for i = 1, items do
  local key, kind, limit, span = KEYS[i + 2], ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local amount = cost[kind]
  in_use[i], left_ms[i] = 0, span
  if kind == 'c' then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    in_use[i] = redis.call('ZCARD', key)
  elseif kind == 'b' then
    local found = redis.call('HMGET', key, 'u', 'r')
    if not found[1] then
      if mode == 0 then return '-2 ' .. i end
      found = {0, 0}
    end
    in_use[i] = tonumber(found[1]) + tonumber(found[2] or 0)
  else
    local found = redis.call('HMGET', key, 'n', 'b')
    local began = tonumber(found[2] or now)
    if began > now then
      began = now
      redis.call('HSET', key, 'b', string.format('%.0f', now))
      redis.call('PEXPIRE', key, span)
    end
    if found[1] and began + span > now then
      in_use[i], left_ms[i] = tonumber(found[1]), began + span - now
    elseif found[1] then
      redis.call('DEL', key)
    end
    amount = math.min(amount, limit)
  end
  if in_use[i] + amount > limit then
    local needed = kind == 'c' and 1000 or left_ms[i]
    if needed > wait then refused, wait = i, needed end
  end
end

local status = 1
if is_open then status = 2
elseif refused > 0 and mode ~= 1 and mode ~= 2 then status = 0 end
if status == 1 then
  local reserved = ''
  for i = 1, items do
    local key, kind, limit, span = KEYS[i + 2], ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
    local amount = cost[kind]
    if kind == 'c' then
      redis.call('ZADD', key, now + lease, op)
      redis.call('PEXPIRE', key, lease + 60000)
      in_use[i] = in_use[i] + 1
    elseif kind == 'b' then
      if redis.call('EXISTS', key) == 1 then
        redis.call('HINCRBY', key, 'r', amount)
        in_use[i] = in_use[i] + amount
        reserved = reserved .. key .. ' ' .. string.format('%.0f', amount) .. ' '
      end
    elseif mode ~= 2 then
      amount = math.min(amount, limit)
      local is_first = redis.call('HINCRBY', key, 'n', amount) == amount
      if is_first and redis.call('HSETNX', key, 'b', string.format('%.0f', now)) == 1 then
        redis.call('PEXPIRE', key, span)
      end
      in_use[i] = in_use[i] + amount
    end
  end
  if mode ~= 3 then
    redis.call('ZADD', open, now + lease, op)
    redis.call('PEXPIRE', open, lease + 60000)
    if reserved ~= '' then
      redis.call('HSET', held, op, reserved)
      redis.call('PEXPIRE', held, lease + 60000)
    end
  end
end
local out = {status, refused, string.format('%.0f', wait)}
for i = 1, items do
  out[#out + 1] = string.format('%.0f', in_use[i])
  out[#out + 1] = string.format('%.0f', left_ms[i])
end
return table.concat(out, ' ')
"""
"""Last argument, separated by spaces: operation id, epoch, lease (ms), mode, tokens, micro-neurons.

Returns numbers: the status; the rejecting item (from 1) and its wait in ms; then, for each item, the used amount and
the ms until its end. NEW_EPOCH is followed only by Redis's epoch, UNKNOWN_BUDGET only by the item."""

SETTLE = """
local items = #KEYS - 2
local at = 3 * items
local op, lease, tokens, used, neurons, spent = string.match(ARGV[at + 1], '(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)')
lease = tonumber(lease)
local reserved = {t = tonumber(tokens), b = tonumber(neurons)}
local actual = {t = tonumber(used), b = tonumber(spent)}
local open, held = KEYS[2], KEYS[2] .. ':held'
local ends = redis.call('ZSCORE', open, op)
if not ends then return 0 end
redis.call('ZREM', open, op)
local budgets = redis.call('HGET', held, op)
if budgets then redis.call('HDEL', held, op) end
local started = ends - lease
for i = 1, items do
  local key, kind, limit = KEYS[i + 2], ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1])
  if kind == 'c' then
    redis.call('ZREM', key, op)
  elseif kind == 't' then
    local more = actual.t - math.min(reserved.t, limit)
    local found = redis.call('HMGET', key, 'n', 'b')
    if found[1] and (more > 0 or tonumber(found[2] or 0) <= started) then
      redis.call('HSET', key, 'n', string.format('%.0f', math.max(0, tonumber(found[1]) + more)))
    end
  elseif kind == 'b' and redis.call('EXISTS', key) == 1 then
    if budgets and string.find(budgets, key .. ' ', 1, true) then redis.call('HINCRBY', key, 'r', 0 - reserved.b) end
    redis.call('HINCRBY', key, 'u', actual.b)
  end
end
return 1
"""
"""Last argument: operation id, lease (ms), tokens reserved and used, micro-neurons reserved and used. Returns 1 if the
call was open; otherwise nothing is changed and 0 is returned."""

RESTORE = """
local n = tonumber(redis.call('HGET', KEYS[1], 'n') or -1)
if tonumber(ARGV[1]) > n then
  local time = redis.call('TIME')
  local left, span = tonumber(ARGV[2]), tonumber(ARGV[3])
  local began = time[1] * 1000 + math.floor(time[2] / 1000) - span + left
  redis.call('HSET', KEYS[1], 'n', ARGV[1], 'b', string.format('%.0f', began))
  redis.call('PEXPIRE', KEYS[1], left)
end
return 1
"""
"""Restore a window that Redis has lost: used amount, ms until its end, length. The largest amount wins."""

SEED = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'u', ARGV[1], 'r', 0)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""
"""Set the used amount of a budget that Redis does not know, and its expiry (ms)."""

RAISE = """
local used = redis.call('HGET', KEYS[1], 'u')
if used and tonumber(used) < tonumber(ARGV[1]) then redis.call('HSET', KEYS[1], 'u', ARGV[1]) end
return 1
"""
"""Raise the used amount of a known budget to at least the given amount."""

_TEXTS = {"reserve": RESERVE, "settle": SETTLE, "restore": RESTORE, "seed": SEED, "raise": RAISE}
SCRIPTS = {name: text.strip() for name, text in _TEXTS.items()}
SHA = {name: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest() for name, text in SCRIPTS.items()}
