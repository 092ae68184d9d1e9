//! A disk with one specimen on it, which is put back after each examination, and the count of what
//! the examinations found.

const std = @import("std");
const zrecord = @import("zrecord");
const sim = @import("sim_files.zig");
const specimen_zig = @import("specimen.zig");

const Disk = sim.Disk;
const Examination = specimen_zig.Examination;
const Outcome = specimen_zig.Outcome;
const Specimen = specimen_zig.Specimen;
const Way = specimen_zig.Way;
const gpa = std.heap.smp_allocator;

pub const Bench = struct {
    specimen: Specimen,
    disk: Disk,
    /// What the engine has, given back as a whole.
    arena: std.heap.ArenaAllocator = .init(gpa),
    /// Whether an examination wrote.
    changed: bool = false,

    pub fn init(bench: *Bench, specimen: Specimen) void {
        bench.* = .{ .specimen = specimen, .disk = .init(gpa) };
        bench.plant();
    }

    pub fn deinit(bench: *Bench) void {
        bench.disk.deinit();
        bench.arena.deinit();
    }

    fn plant(bench: *Bench) void {
        bench.disk.tracking = false;
        bench.specimen.plant(&bench.disk);
        bench.disk.hook = .{ .context = bench, .call = noteChange };
        bench.changed = false;
    }

    fn noteChange(context: *anyopaque, _: *Disk, event: sim.Event) void {
        const bench: *Bench = @ptrCast(@alignCast(context));
        switch (event.call) {
            .write, .truncate, .create, .rename, .unlink => bench.changed = true,
            else => {},
        }
    }

    /// Puts the specimen back, in the memory that the disk has.
    pub fn restore(bench: *Bench) void {
        var position: usize = 0;
        while (position < bench.disk.entries.items.len) {
            const name = bench.disk.entries.items[position].name;
            if (bench.specimen.holds(name)) position += 1 else bench.remove(name);
        }
        bench.plant();
    }

    pub fn remove(bench: *Bench, name: zrecord.files.Name) void {
        var folder = bench.disk.folder();
        folder.unlink(name) catch unreachable;
        folder.closeDirectory();
        bench.changed = false;
    }

    pub fn examine(bench: *Bench, way: Way) Examination {
        const first = bench.examineOnce(way);
        if (!bench.changed or first.outcome != .same) return first;
        // What a writer made of it has to last.
        const second = bench.examineOnce(.{});
        if (second.outcome == .same) return second;
        return .{ .outcome = .wrong, .text = "whole, then not", .err = second.err, .fault = second.fault };
    }

    fn examineOnce(bench: *Bench, way: Way) Examination {
        defer _ = bench.arena.reset(.retain_capacity);
        return switch (bench.specimen.kind) {
            inline else => |kind| specimen_zig.examine(kind, bench.arena.allocator(), &bench.disk, way, bench.specimen),
        };
    }
};

/// A bench for each specimen.
pub fn initAll(arena: std.mem.Allocator, specimens: []const Specimen) ![]Bench {
    const benches = try arena.alloc(Bench, specimens.len);
    for (specimens, benches) |specimen, *bench| bench.init(specimen);
    return benches;
}

pub fn deinitAll(benches: []Bench) void {
    for (benches) |*bench| bench.deinit();
}

pub const Counts = struct {
    by_outcome: std.enums.EnumArray(Outcome, u64) = .initFill(0),
    failed: u64 = 0,

    pub fn add(counts: *Counts, other: Counts) void {
        for (std.enums.values(Outcome)) |outcome| counts.by_outcome.getPtr(outcome).* += other.by_outcome.get(outcome);
        counts.failed += other.failed;
    }

    pub fn print(counts: Counts, title: []const u8) void {
        var total: u64 = 0;
        for (counts.by_outcome.values) |count| total += count;
        std.debug.print("{s}: {d}:", .{ title, total });
        for (std.enums.values(Outcome)) |outcome| std.debug.print(" {d} {t}", .{ counts.by_outcome.get(outcome), outcome });
        std.debug.print("; {d} failed\n", .{counts.failed});
    }
};

pub fn report(specimen: Specimen, damage: []const u8, way: Way, examined: Examination) void {
    var text: [64]u8 = undefined;
    std.debug.print("FAILED: {s}, {s}, {t}: {t} {s} {any} file {any} record {d} expected {x} found {x}\n", .{
        specimen.describe(&text), damage,              way.mode,              examined.outcome,        examined.text,
        examined.err,             examined.fault.file, examined.fault.record, examined.fault.expected, examined.fault.found,
    });
}

/// Calls run() of two workers in threads of their own and adds up their counts.
pub fn runTwo(comptime Worker: type, workers: *[2]Worker) !Counts {
    var threads: [2]std.Thread = undefined;
    for (workers, &threads) |*worker, *thread| thread.* = try .spawn(.{}, Worker.run, .{worker});
    var counts: Counts = .{};
    for (workers, threads) |*worker, thread| {
        thread.join();
        counts.add(worker.counts);
    }
    return counts;
}
