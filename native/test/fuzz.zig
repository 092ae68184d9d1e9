//! Opens, reads, verifies, recovers and changes stores whose folders were mutated, sums made right:
//! no crash, no hang, no memory that the stored bytes do not justify, and no other error than those
//! for damage.
//!
//! A crash or failure prints its seed; -Dscale=0 -Dseed=NUMBER repeats that one alone.

const std = @import("std");
const options = @import("test_options");
const zrecord = @import("zrecord");
const bench_zig = @import("bench.zig");
const model = @import("model.zig");
const mutation = @import("mutation.zig");
const specimen_zig = @import("specimen.zig");
const trial = @import("trial.zig");

const Bench = bench_zig.Bench;
const Fault = zrecord.status.Fault;
const format = zrecord.format;
const print = std.debug.print;
const records_max = specimen_zig.records_max;

const memory_max = 256 << 20;
/// Far more calls than the largest execution needs: whoever makes more is caught in a loop.
const calls_max = 200_000;

/// About a minute on two cores.
const executions_per_scale = 500_000;

/// Counts what is allocated; gives nothing beyond a limit.
const Meter = struct {
    parent: std.mem.Allocator,
    limit: usize = memory_max,
    used: usize = 0,
    peak: usize = 0,
    exceeded: bool = false,

    fn allocator(meter: *Meter) std.mem.Allocator {
        return .{ .ptr = meter, .vtable = &.{ .alloc = alloc, .resize = resize, .remap = remap, .free = free } };
    }

    fn admit(meter: *Meter, more: usize) bool {
        if (meter.used + more > meter.limit) {
            meter.exceeded = true;
            return false;
        }
        meter.used += more;
        meter.peak = @max(meter.peak, meter.used);
        return true;
    }

    fn alloc(context: *anyopaque, size: usize, alignment: std.mem.Alignment, address: usize) ?[*]u8 {
        const meter: *Meter = @ptrCast(@alignCast(context));
        if (!meter.admit(size)) return null;
        return meter.parent.rawAlloc(size, alignment, address);
    }

    fn resize(_: *anyopaque, _: []u8, _: std.mem.Alignment, _: usize, _: usize) bool {
        return false;
    }

    fn remap(_: *anyopaque, _: []u8, _: std.mem.Alignment, _: usize, _: usize) ?[*]u8 {
        return null;
    }

    fn free(context: *anyopaque, memory: []u8, alignment: std.mem.Alignment, address: usize) void {
        const meter: *Meter = @ptrCast(@alignCast(context));
        meter.used -= memory.len;
        meter.parent.rawFree(memory, alignment, address);
    }
};

const Limits = struct { memory: usize = memory_max, calls: u64 = calls_max };

const Result = struct {
    failure: ?[]const u8 = null,
    err: ?anyerror = null,
    fault: Fault = .{},
    peak: usize = 0,
    opened: bool = false,
    read: bool = false,
};

/// One folder's life: opened, read, verified, and by a writer changed and closed.
fn execute(comptime kind: format.Kind, bench: *Bench, random: std.Random, limits: Limits) Result {
    defer _ = bench.arena.reset(.retain_capacity);
    var meter: Meter = .{ .parent = bench.arena.allocator(), .limit = limits.memory };
    const disk = &bench.disk;
    disk.handles.clearRetainingCapacity();
    disk.mappable = random.boolean();
    const calls = disk.call_count;
    var result: Result = .{};
    const T = trial.Trial(specimen_zig.limits, kind);
    if (T.start(meter.allocator(), disk, .{
        .mode = if (random.boolean()) .write else .read,
        .checksums = random.enumValue(zrecord.engine.Checksums),
    })) |opened| {
        result.opened = true;
        use(T, &meter, opened, random, &result);
        opened.abandon();
    } else |err| {
        if (!specimen_zig.saysDamaged(err, trial.open_fault) and err != error.WrongKind) {
            result = .{ .failure = "opening failed in another way", .err = err, .fault = trial.open_fault };
        }
    }
    result.peak = meter.peak;
    if (meter.exceeded) result.failure = "more memory than the stored bytes justify";
    if (meter.used > 0) result.failure = "memory was not given back";
    if (disk.handles_open > 0) result.failure = "files stay open";
    if (disk.call_count - calls > limits.calls) result.failure = "too many calls";
    return result;
}

fn use(comptime T: type, meter: *Meter, opened: *T, random: std.Random, result: *Result) void {
    var fault: Fault = .{};
    if (opened.store.engine != T.kind) return;
    var indices: [records_max]u64 = undefined;
    const count: usize = @intCast(@min(opened.length(), records_max));
    for (indices[0..count]) |*index| index.* = random.uintLessThan(u64, opened.length());
    for (0..random.intRangeAtMost(usize, 1, 6)) |_| {
        fault = .{};
        opened.fault = .{};
        const done: anyerror!void = switch (random.uintLessThan(u8, 10)) {
            0, 1 => gather(T, meter, opened, indices[0..count], &fault),
            2, 3 => single: {
                for (0..count) |position| gather(T, meter, opened, indices[position..][0..1], &fault) catch |err| {
                    if (err != error.CorruptRecord) break :single err;
                };
            },
            4 => verify(opened, &fault),
            5 => opened.store.willNeed(@as([]const u64, indices[0..count])),
            6 => if (opened.store.refresh(&fault)) |_| {} else |err| err,
            7 => opened.append(&.{ 7001, 7002, 7003 }, 1),
            8 => remove(opened, indices[0..@min(count, 2)], &fault),
            else => if (random.boolean()) opened.compact() else opened.sync(),
        };
        if (done) |_| {
            result.read = true;
        } else |err| {
            const where = if (std.meta.eql(fault, Fault{})) opened.fault else fault;
            const known = specimen_zig.saysDamaged(err, where) or switch (err) {
                error.ReadOnly, error.Failed, error.BatchTooLarge => true,
                // A delete made the store shorter; a header claims another width than these records have.
                error.IndexOutOfRange, error.ShapeMismatch => true,
                // A tail or length at the last chunk or segment that there may be.
                error.InvalidArgument => true,
                else => false,
            };
            if (!known) result.* = .{ .failure = "a call failed in another way", .err = err, .fault = where, .opened = true };
        }
    }
}

fn gather(comptime T: type, meter: *Meter, opened: *T, indices: []const u64, fault: *Fault) !void {
    fault.* = .{};
    const engine = try opened.store.enterKind(T.kind, fault);
    defer engine.leave();
    const gpa = meter.allocator();
    if (T.kind == .dense) {
        // A header may claim any width; whoever calls allocates for it.
        if (engine.width > 1 << 16) return;
        const bytes = try gpa.alloc(u8, indices.len * engine.width);
        defer gpa.free(bytes);
        return zrecord.dense.gatherInto(engine, indices, bytes, fault);
    }
    var offsets: [records_max + 1]i64 = undefined;
    var shapes: [records_max]u64 = undefined;
    var dim_count: u64 = 0;
    try zrecord.ragged.plan(engine, indices, offsets[0 .. indices.len + 1], shapes[0..indices.len], &dim_count, fault);
    const bytes = try gpa.alloc(u8, @as(usize, @intCast(offsets[indices.len])) * engine.width);
    defer gpa.free(bytes);
    const dims = try gpa.alloc(u64, @intCast(dim_count));
    defer gpa.free(dims);
    try zrecord.ragged.gatherInto(engine, indices, offsets[0 .. indices.len + 1], shapes[0..indices.len], bytes, dims, fault);
}

fn verify(opened: anytype, fault: *Fault) !void {
    fault.* = .{};
    var findings: specimen_zig.Findings = .{};
    _ = try opened.store.verify(&findings, fault);
}

fn remove(opened: anytype, indices: []const u64, fault: *Fault) !void {
    fault.* = .{};
    // Another delete may have made the store shorter.
    for (indices) |index| if (index >= opened.length()) return;
    _ = try opened.store.delete(indices, fault);
}

const Worker = struct {
    benches: []Bench,
    next: *std.atomic.Value(u64),
    end: u64,
    seed: *std.atomic.Value(u64),
    executions: u64 = 0,
    opened: u64 = 0,
    read: u64 = 0,
    peak: usize = 0,
    failed: u64 = 0,

    fn run(worker: *Worker) void {
        while (worker.failed < 10) {
            const seed = worker.next.fetchAdd(1, .monotonic);
            if (seed >= worker.end) return;
            worker.seed.store(seed, .monotonic);
            const result = mutateAndExecute(worker.benches, seed, .{});
            worker.executions += 1;
            worker.opened += @intFromBool(result.opened);
            worker.read += @intFromBool(result.read);
            worker.peak = @max(worker.peak, result.peak);
            if (result.failure == null) continue;
            worker.failed += 1;
            print("FAILED: seed {d}: {s}, {any} file {any} record {d} expected {x} found {x} peak {d}\n", .{
                seed,                result.failure.?,      result.err,         result.fault.file,
                result.fault.record, result.fault.expected, result.fault.found, result.peak,
            });
        }
    }
};

fn mutateAndExecute(benches: []Bench, seed: u64, limits: Limits) Result {
    var prng: std.Random.DefaultPrng = .init(seed);
    const random = prng.random();
    const bench = &benches[random.uintLessThan(usize, benches.len)];
    bench.restore();
    switch (bench.specimen.kind) {
        inline else => |kind| {
            for (0..random.intRangeAtMost(usize, 1, 4)) |_| mutation.mutate(kind, &bench.disk, random);
            return execute(kind, bench, random, limits);
        },
    }
}

/// The seeds that the workers are at, for a crash's last words.
var seeds: [2]std.atomic.Value(u64) = @splat(.init(0));

fn sayWhere(_: std.posix.SIG) callconv(.c) void {
    for (&seeds) |*seed| print("running: seed {d}\n", .{seed.load(.monotonic)});
    std.posix.sigaction(.ABRT, &.{ .handler = .{ .handler = std.posix.SIG.DFL }, .mask = std.posix.sigemptyset(), .flags = 0 }, null);
}

test "mutated stores" {
    std.posix.sigaction(.ABRT, &.{ .handler = .{ .handler = sayWhere }, .mask = std.posix.sigemptyset(), .flags = 0 }, null);
    var arena: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena.deinit();
    const specimens = try specimen_zig.buildAll(arena.allocator(), 1);
    var next: std.atomic.Value(u64) = .init(options.seed);
    const end = options.seed + if (options.scale == 0) 1 else executions_per_scale * @as(u64, options.scale);
    var workers: [2]Worker = undefined;
    var threads: [2]std.Thread = undefined;
    for (&workers, &threads, &seeds) |*worker, *thread, *seed| {
        worker.* = .{ .benches = try bench_zig.initAll(arena.allocator(), specimens), .next = &next, .end = end, .seed = seed };
        thread.* = try .spawn(.{}, Worker.run, .{worker});
    }
    var total: Worker = .{ .benches = &.{}, .next = &next, .end = end, .seed = &seeds[0] };
    for (&workers, threads) |*worker, thread| {
        thread.join();
        bench_zig.deinitAll(worker.benches);
        total.executions += worker.executions;
        total.opened += worker.opened;
        total.read += worker.read;
        total.peak = @max(total.peak, worker.peak);
        total.failed += worker.failed;
    }
    print("mutated stores: {d} executions, {d} opened, {d} read, at most {d} KiB of memory, {d} failed\n", .{
        total.executions, total.opened, total.read, total.peak >> 10, total.failed,
    });
    if (total.failed > 0) return error.Failed;
}

test "canaries: what the fuzzer is there to see, it sees" {
    var arena: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena.deinit();
    const specimens = try specimen_zig.buildAll(arena.allocator(), 1);
    const benches = try bench_zig.initAll(arena.allocator(), specimens);
    defer bench_zig.deinitAll(benches);
    var memory_seen: u64 = 0;
    var calls_seen: u64 = 0;
    for (0..200) |seed| {
        memory_seen += @intFromBool(mutateAndExecute(benches, seed, .{ .memory = 20 << 10 }).failure != null);
        calls_seen += @intFromBool(mutateAndExecute(benches, seed, .{ .calls = 10 }).failure != null);
    }
    try std.testing.expect(memory_seen > 0 and calls_seen > 0);
    // A record that was changed together with its sum is served: only the comparison sees it.
    for (specimens) |specimen| {
        if (specimen.codec != .raw or specimen.moment != .closed) continue;
        var bench: Bench = undefined;
        bench.init(specimen);
        defer bench.deinit();
        switch (specimen.kind) {
            inline else => |kind| mutation.forge(kind, &bench.disk),
        }
        try std.testing.expectEqual(.wrong, bench.examine(.{}).outcome);
    }
}
