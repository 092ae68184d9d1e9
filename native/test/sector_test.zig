//! Damages small stores by more than a bit: bytes, bursts, sectors that are zeroed, repeated,
//! exchanged or old, files that are cut, grown, missing, or another store's.
//!
//! A failing damage prints its seed; -Dscale=0 -Dseed=NUMBER repeats that one alone.

const std = @import("std");
const options = @import("test_options");
const zrecord = @import("zrecord");
const bench_zig = @import("bench.zig");
const specimen_zig = @import("specimen.zig");

const Bench = bench_zig.Bench;
const File = specimen_zig.File;
const Name = zrecord.files.Name;
const Specimen = specimen_zig.Specimen;
const Way = specimen_zig.Way;
const format = zrecord.format;

const Damage = enum {
    bytes,
    burst,
    zeroed,
    repeated,
    exchanged,
    /// As it was at the first sync.
    old,
    cut,
    grown,
    missing,
    /// A table entry of another index.
    other_index,
    /// A table entry of another store.
    other_entry,
    /// A whole file of another store.
    other_file,
    /// Two files of one kind change places.
    files_exchanged,
};

const Chosen = struct {
    specimen: Specimen,
    /// The same store with other records.
    other: Specimen,
    way: Way,
    damage: Damage,
    file: File,
    random: std.Random,

    /// False: this damage does not apply here.
    fn apply(chosen: Chosen, bench: *Bench) bool {
        const name = chosen.file.name;
        const random = chosen.random;
        const content = bench.disk.content(name).?;
        switch (chosen.damage) {
            .bytes => {
                if (content.len == 0) return false;
                for (0..random.intRangeAtMost(usize, 1, 8)) |_| content[random.uintLessThan(usize, content.len)] = random.int(u8);
            },
            .burst => random.bytes(part(random, content, random.intRangeAtMost(usize, 1, 600)) orelse return false),
            .zeroed => @memset(sector(random, content) orelse return false, 0),
            .repeated, .exchanged => {
                const a = sector(random, content) orelse return false;
                const b = sector(random, content) orelse return false;
                const size = @min(a.len, b.len);
                var kept: [512]u8 = undefined;
                @memcpy(kept[0..size], a[0..size]);
                if (chosen.damage == .exchanged) @memmove(a[0..size], b[0..size]);
                @memcpy(b[0..size], kept[0..size]);
            },
            .old => {
                const before = find(chosen.specimen.earlier, name) orelse return false;
                const target = sector(random, content) orelse return false;
                const at = @intFromPtr(target.ptr) - @intFromPtr(content.ptr);
                if (at >= before.len) return false;
                const size = @min(target.len, before.len - at);
                @memcpy(target[0..size], before[at..][0..size]);
            },
            .cut => {
                if (content.len == 0) return false;
                bench.disk.plant(name, chosen.file.bytes[0..random.uintLessThan(usize, content.len)]);
            },
            .grown => {
                var grown: [(64 << 10) + 256]u8 = undefined;
                if (content.len > 64 << 10) return false;
                @memcpy(grown[0..content.len], content);
                random.bytes(grown[content.len..][0..200]);
                bench.disk.plant(name, grown[0 .. content.len + random.intRangeAtMost(usize, 1, 200)]);
            },
            .missing => {
                // A writer needs it for deletes only, readers say that it is missing.
                if (name == .readers_lock and chosen.way.mode == .write) return false;
                bench.remove(name);
            },
            .other_index, .other_entry => {
                if (name != .segment) return false;
                const size = chosen.specimen.kind.entrySize();
                const source = if (chosen.damage == .other_index) content else find(chosen.other.files, name) orelse return false;
                const from = random.uintLessThan(usize, source.len / size) * size;
                const to = random.uintLessThan(usize, content.len / size) * size;
                @memmove(content[to..][0..size], source[from..][0..size]);
            },
            .other_file => bench.disk.plant(name, find(chosen.other.files, name) orelse return false),
            .files_exchanged => {
                const second = chosen.specimen.files[random.uintLessThan(usize, chosen.specimen.files.len)];
                if (std.meta.activeTag(second.name) != std.meta.activeTag(name)) return false;
                bench.disk.plant(name, second.bytes);
                bench.disk.plant(second.name, chosen.file.bytes);
            },
        }
        return true;
    }

    fn expects(chosen: Chosen, outcome: specimen_zig.Outcome) bool {
        return switch (outcome) {
            .same, .refused, .records => true,
            // An entry that once stood here is whole: verify alone sees that the table is not the newest.
            .table => chosen.file.name == .segment and chosen.damage == .old,
            // As after a power cut: un-synced appends whose slot is not whole, or never came.
            .shorter => chosen.file.name == .meta,
            .wrong => false,
        };
    }

    /// What is as if a write that was reported durable had never happened.
    fn undoesDurableWrite(chosen: Chosen) bool {
        if (chosen.specimen.moment != .deleting or chosen.file.name != .journal) return false;
        return switch (chosen.damage) {
            .zeroed, .repeated, .exchanged, .old => true,
            else => false,
        };
    }
};

fn find(list: []const File, name: Name) ?[]const u8 {
    for (list) |file| if (std.meta.eql(file.name, name)) return file.bytes;
    return null;
}

/// Somewhere in the bytes that say something.
fn part(random: std.Random, content: []u8, size: usize) ?[]u8 {
    if (content.len == 0) return null;
    const used = if (content.len > 16 << 10) 1024 else content.len;
    const from = random.uintLessThan(usize, used);
    return content[from..@min(from + size, content.len)];
}

fn sector(random: std.Random, content: []u8) ?[]u8 {
    const size: usize = if (random.boolean()) 64 else 512;
    const somewhere = part(random, content, 1) orelse return null;
    const from = std.mem.alignBackward(usize, @intFromPtr(somewhere.ptr) - @intFromPtr(content.ptr), size);
    return content[from..@min(from + size, content.len)];
}

const Worker = struct {
    specimens: []const Specimen,
    others: []const Specimen,
    /// One for each specimen.
    benches: []Bench,
    next: *std.atomic.Value(u64),
    end: u64,
    counts: bench_zig.Counts = .{},

    pub fn run(worker: *Worker) void {
        while (worker.counts.failed < 10) {
            const seed = worker.next.fetchAdd(1, .monotonic);
            if (seed >= worker.end) return;
            worker.damageOnce(seed);
        }
    }

    fn damageOnce(worker: *Worker, seed: u64) void {
        var prng: std.Random.DefaultPrng = .init(seed);
        const random = prng.random();
        const position = random.uintLessThan(usize, worker.specimens.len);
        const specimen = worker.specimens[position];
        const bench = &worker.benches[position];
        bench.restore();
        const chosen: Chosen = .{
            .specimen = specimen,
            .other = worker.others[position],
            .way = .{ .mode = if (random.boolean()) .read else .write, .mapping = random.boolean() },
            .damage = random.enumValue(Damage),
            .file = specimen.files[random.uintLessThan(usize, specimen.files.len)],
            .random = random,
        };
        if (chosen.undoesDurableWrite() or !chosen.apply(bench)) return;
        const examined = bench.examine(chosen.way);
        worker.counts.by_outcome.getPtr(examined.outcome).* += 1;
        if (chosen.expects(examined.outcome)) return;
        worker.counts.failed += 1;
        var text: [64]u8 = undefined;
        var name: Name.Buffer = undefined;
        bench_zig.report(specimen, std.fmt.bufPrint(&text, "seed {d} {t} {s}", .{ seed, chosen.damage, chosen.file.name.text(&name) }) catch unreachable, chosen.way, examined);
    }
};

test "damaged files are noticed or change nothing" {
    var arena: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena.deinit();
    const specimens = try specimen_zig.buildAll(arena.allocator(), 1);
    var next: std.atomic.Value(u64) = .init(options.seed);
    var workers: [2]Worker = undefined;
    for (&workers) |*worker| worker.* = .{
        .specimens = specimens,
        .others = try specimen_zig.buildAll(arena.allocator(), 2),
        .benches = try bench_zig.initAll(arena.allocator(), specimens),
        .next = &next,
        .end = options.seed + if (options.scale == 0) 1 else 200_000 * @as(u64, options.scale),
    };
    defer for (&workers) |worker| bench_zig.deinitAll(worker.benches);
    const counts = try bench_zig.runTwo(Worker, &workers);
    counts.print("damaged files");
    if (counts.failed > 0) return error.Silent;
}

test "a file cut at any length is noticed or changes nothing" {
    var arena: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena.deinit();
    var counts: bench_zig.Counts = .{};
    for (try specimen_zig.buildAll(arena.allocator(), 1)) |specimen| {
        var bench: Bench = undefined;
        bench.init(specimen);
        defer bench.deinit();
        for (specimen.files) |file| {
            // Journal and slots say nothing in most of their lengths.
            var size: usize = 0;
            while (size < file.bytes.len) : (size += if (size < 600) 1 else 509) {
                for ([_]Way{ .{ .mode = .read, .mapping = true }, .{ .mode = .write } }) |way| {
                    bench.disk.plant(file.name, file.bytes[0..size]);
                    const examined = bench.examine(way);
                    counts.by_outcome.getPtr(examined.outcome).* += 1;
                    switch (examined.outcome) {
                        .same, .refused, .records => {},
                        .table, .shorter, .wrong => {
                            var text: [64]u8 = undefined;
                            var name: Name.Buffer = undefined;
                            const damage = std.fmt.bufPrint(&text, "{s} cut at {d}", .{ file.name.text(&name), size }) catch unreachable;
                            bench_zig.report(specimen, damage, way, examined);
                            counts.failed += 1;
                            if (counts.failed > 10) return error.Silent;
                        },
                    }
                    bench.restore();
                }
            }
        }
    }
    counts.print("cut files");
    if (counts.failed > 0) return error.Silent;
}

test "a dictionary in a store that needs none makes it malformed" {
    var arena: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena.deinit();
    for (try specimen_zig.buildAll(arena.allocator(), 1)) |specimen| {
        if (specimen.codec == .zstd_dict) continue;
        var bench: Bench = undefined;
        bench.init(specimen);
        defer bench.deinit();
        bench.disk.plant(.dict, "another store's dictionary");
        try std.testing.expectEqual(.refused, bench.examine(.{}).outcome);
    }
}
