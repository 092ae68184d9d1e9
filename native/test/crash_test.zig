//! Crashes a store at every change of its medium, and proves that the search notices protocol
//! mistakes.
//!
//!     zig build crash [-Dscale=N] [-Dseed=N]
//!
//! A failing script prints its number; `-Dscale=0 -Dseed=NUMBER` runs that script alone.

const std = @import("std");
const builtin = @import("builtin");
const options = @import("test_options");
const zrecord = @import("zrecord");
const crash_search = @import("crash_search.zig");
const trial = @import("trial.zig");
const sim = @import("sim_files.zig");

const Counts = crash_search.Counts;
const Operation = crash_search.Operation;
const Script = crash_search.Script;
const Seen = crash_search.Seen;
const print = std.debug.print;

const Dense = trial.Trial(trial.tiny, .dense);
const Ragged = trial.Trial(trial.tiny, .ragged);

const worker_count = 2;
const gpa = std.heap.smp_allocator;
const page_sizes = [_]u32{ 4096, 512, 64 };

const short_operations = [_]Operation{ .append, .sync, .delete, .compact, .reopen };
const short_count = 5 + 25 + 125;
/// Page size, names, kind and codec.
const variant_count = page_sizes.len * 2 * 2 * 2;

const Plan = struct { script: Script, ragged: bool };

/// Script `number`: first every sequence of up to three operations in every variant, then random ones.
fn planOf(number: u64, buffer: *[16]Operation) Plan {
    var plan: Plan = .{ .script = .{ .seed = number, .operations = undefined }, .ragged = number / 6 % 2 != 0 };
    plan.script.page_size = page_sizes[@intCast(number % 3)];
    plan.script.names = if (number / 3 % 2 == 0) .strict else .ordered;
    if (number < short_count * variant_count) {
        plan.script.codec = if (number / 12 % 2 == 0) .raw else .zstd;
        var rest = number / variant_count;
        var length: usize = 1;
        var sequences: u64 = short_operations.len;
        while (rest >= sequences) : (length += 1) {
            rest -= sequences;
            sequences *= short_operations.len;
        }
        for (buffer[0..length]) |*operation| {
            operation.* = short_operations[@intCast(rest % short_operations.len)];
            rest /= short_operations.len;
        }
        plan.script.operations = buffer[0..length];
        return plan;
    }
    var prng: std.Random.DefaultPrng = .init(number);
    const random = prng.random();
    plan.script.codec = if (random.uintLessThan(u8, 8) == 0) .zstd else .raw;
    plan.script.mappable = random.boolean();
    // Some scripts live on everything, others on appends and power cuts, or on kills.
    const Weight = struct { Operation, u8 };
    const weights: []const Weight = switch (random.uintLessThan(u8, 5)) {
        0, 1 => &.{ .{ .append, 6 }, .{ .append_parts, 1 }, .{ .abort, 1 }, .{ .sync, 2 }, .{ .sync_append, 1 }, .{ .delete, 3 }, .{ .compact, 2 }, .{ .close, 1 }, .{ .kill, 2 }, .{ .power, 2 } },
        2, 3 => &.{ .{ .append, 8 }, .{ .abort, 1 }, .{ .sync, 1 }, .{ .sync_append, 1 }, .{ .kill, 1 }, .{ .power, 6 } },
        else => &.{ .{ .append, 4 }, .{ .delete, 1 }, .{ .kill, 8 }, .{ .power, 1 } },
    };
    var total: u64 = 0;
    for (weights) |weight| total += weight[1];
    for (buffer[0..14]) |*operation| {
        var ticket = random.uintLessThan(u64, total);
        for (weights) |weight| {
            operation.* = weight[0];
            if (ticket < weight[1]) break;
            ticket -= weight[1];
        }
    }
    plan.script.operations = buffer[0..14];
    plan.script.checksums = random.enumValue(zrecord.engine.Checksums);
    return plan;
}

/// Runs one script; the violation's text if there is one.
fn runScript(comptime Trial: type, plan: Plan, seen: *Seen, counts: *Counts, text: *[400]u8) !?[]const u8 {
    trial.checksums = plan.script.checksums;
    defer trial.checksums = .always;
    var search: crash_search.Search(Trial) = .init(gpa, seen, plan.script);
    defer search.deinit();
    _ = try search.run();
    counts.add(search.counts);
    const found = search.violation orelse return null;
    return try std.fmt.bufPrint(text, "{s} ({any} expected {d} found {d})", .{
        found, search.fault.file, search.fault.expected, search.fault.found,
    });
}

fn describe(plan: Plan) void {
    print("script {d} (page {d}, {t} names, {t}, {s}):", .{
        plan.script.seed,  plan.script.page_size,                  plan.script.names,
        plan.script.codec, if (plan.ragged) "ragged" else "dense",
    });
    for (plan.script.operations) |operation| print(" {t}", .{operation});
    print("\n", .{});
}

const Worker = struct {
    next: *std.atomic.Value(u64),
    distinct: *std.atomic.Value(u64),
    wanted: u64,
    end: u64,
    counts: Counts = .{},
    seen: Seen = .empty,
    failed: u64 = 0,
    failure: ?anyerror = null,

    fn run(worker: *Worker) void {
        worker.tryRun() catch |err| {
            worker.failure = err;
        };
    }

    fn tryRun(worker: *Worker) !void {
        while (worker.distinct.load(.monotonic) < worker.wanted) {
            const number = worker.next.fetchAdd(1, .monotonic);
            if (number >= worker.end) return;
            var buffer: [16]Operation = undefined;
            const plan = planOf(number, &buffer);
            var counts: Counts = .{};
            var text: [400]u8 = undefined;
            const violation = if (plan.ragged)
                try runScript(Ragged, plan, &worker.seen, &counts, &text)
            else
                try runScript(Dense, plan, &worker.seen, &counts, &text);
            worker.counts.add(counts);
            _ = worker.distinct.fetchAdd(counts.distinct, .monotonic);
            if (violation) |found| {
                worker.failed += 1;
                print("VIOLATION: {s}\n  ", .{found});
                describe(plan);
                print("  replay: zig build crash -Dscale=0 -Dseed={d}\n", .{number});
                if (worker.failed >= 5) return;
            }
        }
    }
};

test "crash states" {
    const wanted: u64 = if (options.scale == 0) 1 else if (builtin.mode == .Debug) 20_000 else 1_000_000;
    var next: std.atomic.Value(u64) = .init(options.seed - 1);
    if (options.scale == 0) next.raw = options.seed;
    const end = if (options.scale == 0) options.seed + 1 else std.math.maxInt(u64);
    var distinct: std.atomic.Value(u64) = .init(0);
    var workers: [worker_count]Worker = undefined;
    var threads: [worker_count]std.Thread = undefined;
    for (&workers, &threads) |*worker, *thread| {
        // A tenth more, since both may meet the same states.
        worker.* = .{ .next = &next, .distinct = &distinct, .wanted = wanted * @max(options.scale, 1) * 11 / 10, .end = end };
        thread.* = try .spawn(.{}, Worker.run, .{worker});
    }
    var total: Counts = .{};
    var failed: u64 = 0;
    for (&workers, threads) |*worker, thread| {
        thread.join();
        if (worker.failure) |err| return err;
        total.add(worker.counts);
        failed += worker.failed;
    }
    // Both workers may have met the same state.
    var shared: u64 = 0;
    var keys = workers[0].seen.keyIterator();
    while (keys.next()) |key| shared += @intFromBool(workers[1].seen.contains(key.*));
    total.distinct -= shared;
    for (&workers) |*worker| worker.seen.deinit(gpa);
    total.print("crash states");
    print("crash states: {d} passed, {d} failed\n", .{ total.scripts - failed, failed });
    if (failed > 0) return error.Violations;
}

/// Opens every crash image of a creation under way: a store is there as a whole, or what is there
/// can be created anew.
fn Creation(comptime Trial: type) type {
    return struct {
        names: sim.Disk.Names,
        codec: zrecord.format.Codec,
        arena: std.heap.ArenaAllocator,
        prng: std.Random.DefaultPrng = .init(1),
        states: u64 = 0,
        whole: u64 = 0,
        failure: ?anyerror = null,

        const Self = @This();

        fn run(self: *Self, page_size: u32) !void {
            defer self.arena.deinit();
            var disk: sim.Disk = .init(gpa);
            defer disk.deinit();
            disk.page_size = page_size;
            disk.hook = .{ .context = self, .call = happened };
            const created = try Trial.create(gpa, &disk, self.codec);
            disk.hook = null;
            if (self.failure) |err| return err;
            // From here on it is durable.
            try self.examine(&disk, true);
            created.abandon();
        }

        fn happened(context: *anyopaque, disk: *sim.Disk, _: sim.Event) void {
            const self: *Self = @ptrCast(@alignCast(context));
            if (self.failure != null) return;
            disk.hook = null;
            defer disk.hook = .{ .context = self, .call = happened };
            self.examine(disk, false) catch |err| {
                self.failure = err;
            };
        }

        fn examine(self: *Self, disk: *sim.Disk, durable: bool) !void {
            const count = disk.updateCount();
            const kept = try gpa.alloc(bool, count);
            defer gpa.free(kept);
            const is_few = count <= 10;
            const rounds: usize = if (is_few) @as(usize, 1) << @intCast(count) else 300;
            for (0..rounds) |bits| {
                const share = self.prng.random().int(u8);
                for (kept, 0..) |*keep, position| {
                    keep.* = if (is_few) bits >> @intCast(position) & 1 != 0 else self.prng.random().int(u8) <= share;
                }
                _ = self.arena.reset(.retain_capacity);
                var image = disk.image(self.arena.allocator(), kept, self.names);
                image.tracking = false;
                try self.open(&image, durable);
            }
            _ = self.arena.reset(.retain_capacity);
            var killed = disk.killed(self.arena.allocator());
            try self.open(&killed, durable);
        }

        fn open(self: *Self, image: *sim.Disk, durable: bool) !void {
            self.states += 1;
            const arena = self.arena.allocator();
            if (Trial.open(arena, image)) |opened| {
                self.whole += 1;
                if (opened.length() != 0) return error.RecordsFromNowhere;
                return opened.abandon();
            } else |err| {
                if (durable or (err != error.NoStore and err != error.Unfinished)) return err;
            }
            const created = try Trial.create(arena, image, self.codec);
            defer created.abandon();
            try created.append(&.{ 1, 2, 3 }, 1);
            const ids = try created.readAll(arena);
            if (ids.len != 3) return error.WrongRecords;
        }
    };
}

test "a creation that is cut leaves a whole store or none" {
    var states: u64 = 0;
    var whole: u64 = 0;
    for (page_sizes) |page_size| {
        for ([_]sim.Disk.Names{ .strict, .ordered }) |names| {
            for ([_]zrecord.format.Codec{ .raw, .zstd_dict }) |codec| {
                var dense: Creation(Dense) = .{ .names = names, .codec = codec, .arena = .init(gpa) };
                try dense.run(page_size);
                var ragged: Creation(Ragged) = .{ .names = names, .codec = codec, .arena = .init(gpa) };
                try ragged.run(page_size);
                states += dense.states + ragged.states;
                whole += dense.whole + ragged.whole;
            }
        }
    }
    print("creation: {d} states, {d} of them a whole store\ncreation: {d} passed, 0 failed\n", .{ states, whole, page_sizes.len * 8 });
}

/// A mistake that is not noticed within this many distinct states counts as missed.
const mistake_states_max = 300_000;

/// Leaves one rule after the other out and waits for the first script that fails.
const Hunter = struct {
    next: *std.atomic.Value(usize),
    passed: u64 = 0,
    failed: u64 = 0,
    failure: ?anyerror = null,

    fn run(hunter: *Hunter) void {
        const mistakes = std.enums.values(zrecord.limits.Mistake);
        while (true) {
            const index = hunter.next.fetchAdd(1, .monotonic);
            if (index >= mistakes.len) return;
            const mistake = mistakes[index];
            // A crash alone does not show how a failed fsync is treated: fault_test.zig does.
            if (mistake == .none or mistake == .failed_sync_retried or mistake == .poison_keeps_boot_id) continue;
            zrecord.limits.mistake_made = mistake;
            const caught = hunt(mistake) catch |err| {
                hunter.failure = err;
                return;
            };
            if (caught) hunter.passed += 1 else hunter.failed += 1;
        }
    }

    fn hunt(mistake: zrecord.limits.Mistake) !bool {
        var seen: Seen = .empty;
        defer seen.deinit(gpa);
        var counts: Counts = .{};
        var text: [400]u8 = undefined;
        var number: u64 = 0;
        while (counts.distinct < mistake_states_max) : (number += 1) {
            // Long scripts from the start: some mistakes need more than three operations.
            const script_number = if (number % 2 == 0) number / 2 * 6 else short_count * variant_count + number;
            var buffer: [16]Operation = undefined;
            const plan = planOf(script_number, &buffer);
            const found = if (plan.ragged)
                try runScript(Ragged, plan, &seen, &counts, &text)
            else
                try runScript(Dense, plan, &seen, &counts, &text);
            if (found) |words| {
                print("{t}: caught after {d} states, script {d}: {s}\n", .{ mistake, counts.states, script_number, words });
                return true;
            }
        }
        print("{t}: NOT caught in {d} states\n", .{ mistake, counts.states });
        return false;
    }
};

test "every mistake in the protocol is noticed" {
    // What the search can notice is the same in every mode; at speed it takes less time.
    if (options.scale == 0 or builtin.mode == .Debug) return;
    var next: std.atomic.Value(usize) = .init(0);
    var hunters: [worker_count]Hunter = @splat(.{ .next = &next });
    var threads: [worker_count]std.Thread = undefined;
    for (&hunters, &threads) |*hunter, *thread| thread.* = try .spawn(.{}, Hunter.run, .{hunter});
    var passed: u64 = 0;
    var failed: u64 = 0;
    for (&hunters, threads) |*hunter, thread| {
        thread.join();
        if (hunter.failure) |err| return err;
        passed += hunter.passed;
        failed += hunter.failed;
    }
    print("mistakes: {d} passed, {d} failed\n", .{ passed, failed });
    if (failed > 0) return error.MistakesMissed;
}
