//! Mutex, condition and a gate of many readers or one writer, on what the platform offers.
//!
//! After fork a lock that a thread of the parent held would stay held for ever: the child assigns
//! `.init` to each before it uses them.

const std = @import("std");
const builtin = @import("builtin");

const windows = builtin.os.tag == .windows;
const c = std.c;

extern "kernel32" fn AcquireSRWLockExclusive(lock: *?*anyopaque) callconv(.winapi) void;
extern "kernel32" fn ReleaseSRWLockExclusive(lock: *?*anyopaque) callconv(.winapi) void;
extern "kernel32" fn SleepConditionVariableSRW(condition: *?*anyopaque, lock: *?*anyopaque, milliseconds: u32, flags: u32) callconv(.winapi) c_int;
extern "kernel32" fn WakeConditionVariable(condition: *?*anyopaque) callconv(.winapi) void;
extern "kernel32" fn WakeAllConditionVariable(condition: *?*anyopaque) callconv(.winapi) void;
const infinite = std.math.maxInt(u32);

pub const Mutex = struct {
    native: if (windows) ?*anyopaque else c.pthread_mutex_t,

    pub const init: Mutex = .{ .native = if (windows) null else .{} };

    pub fn lock(self: *Mutex) void {
        if (windows) return AcquireSRWLockExclusive(&self.native);
        std.debug.assert(c.pthread_mutex_lock(&self.native) == .SUCCESS);
    }

    pub fn unlock(self: *Mutex) void {
        if (windows) return ReleaseSRWLockExclusive(&self.native);
        std.debug.assert(c.pthread_mutex_unlock(&self.native) == .SUCCESS);
    }
};

pub const Condition = struct {
    native: if (windows) ?*anyopaque else c.pthread_cond_t,

    pub const init: Condition = .{ .native = if (windows) null else .{} };

    /// May return without a signal.
    pub fn wait(self: *Condition, mutex: *Mutex) void {
        if (windows) {
            _ = SleepConditionVariableSRW(&self.native, &mutex.native, infinite, 0);
        } else {
            std.debug.assert(c.pthread_cond_wait(&self.native, &mutex.native) == .SUCCESS);
        }
    }

    pub fn signal(self: *Condition) void {
        if (windows) return WakeConditionVariable(&self.native);
        std.debug.assert(c.pthread_cond_signal(&self.native) == .SUCCESS);
    }

    pub fn broadcast(self: *Condition) void {
        if (windows) return WakeAllConditionVariable(&self.native);
        std.debug.assert(c.pthread_cond_broadcast(&self.native) == .SUCCESS);
    }
};

/// Shared by readers, exclusive for a writer. A waiting writer goes before readers that come later, so
/// a stream of readers cannot keep it out; nobody may enter twice.
pub const Gate = struct {
    mutex: Mutex = .init,
    changed: Condition = .init,
    readers: u32 = 0,
    writers_waiting: u32 = 0,
    writing: bool = false,

    pub const init: Gate = .{};

    pub fn lockShared(self: *Gate) void {
        self.mutex.lock();
        defer self.mutex.unlock();
        while (self.writing or self.writers_waiting > 0) self.changed.wait(&self.mutex);
        self.readers += 1;
    }

    pub fn unlockShared(self: *Gate) void {
        self.mutex.lock();
        defer self.mutex.unlock();
        self.readers -= 1;
        if (self.readers == 0 and self.writers_waiting > 0) self.changed.broadcast();
    }

    pub fn lock(self: *Gate) void {
        self.mutex.lock();
        defer self.mutex.unlock();
        self.writers_waiting += 1;
        while (self.writing or self.readers > 0) self.changed.wait(&self.mutex);
        self.writers_waiting -= 1;
        self.writing = true;
    }

    pub fn unlock(self: *Gate) void {
        self.mutex.lock();
        defer self.mutex.unlock();
        self.writing = false;
        self.changed.broadcast();
    }
};

test "a gate keeps a writer apart from readers" {
    const Shared = struct {
        gate: Gate = .init,
        pair: [2]u64 = .{ 0, 0 },

        fn write(self: *@This()) void {
            for (0..2000) |_| {
                self.gate.lock();
                defer self.gate.unlock();
                self.pair[0] += 1;
                self.pair[1] += 1;
            }
        }

        fn read(self: *@This(), torn: *bool) void {
            for (0..2000) |_| {
                self.gate.lockShared();
                defer self.gate.unlockShared();
                if (self.pair[0] != self.pair[1]) torn.* = true;
            }
        }
    };
    var shared: Shared = .{};
    var torn = [2]bool{ false, false };
    const threads = [4]std.Thread{
        try std.Thread.spawn(.{}, Shared.write, .{&shared}),
        try std.Thread.spawn(.{}, Shared.write, .{&shared}),
        try std.Thread.spawn(.{}, Shared.read, .{ &shared, &torn[0] }),
        try std.Thread.spawn(.{}, Shared.read, .{ &shared, &torn[1] }),
    };
    for (threads) |thread| thread.join();
    try std.testing.expectEqual([2]u64{ 4000, 4000 }, shared.pair);
    try std.testing.expectEqual([2]bool{ false, false }, torn);
}
