// How the programs in this folder keep their state: with the library, with a plain
// file for comparison, or not at all.
//
//   --config FILE   the library, configured by FILE; goes on where it was
//   --plain FILE    everything copied to the host and written to FILE; goes on too
//   --level N       the library's level of checkpoints (default 1, local)
//   --every N       a checkpoint every N steps (default 20; with --config and 0, the
//                   library's own interval)
//
// What the saver did is printed on stderr when the program ends, as one JSON object.
#pragma once

#include <chrono>
#include <string>
#include <unistd.h>

#include "../common.h"
#include "fermata.h"
#include "ranks.h"

class Saver {
  public:
    Saver(int argc, char **argv, Ranks *ranks = nullptr) {
        fermata_comm bridge = {};
        if (ranks && ranks->size() > 1) {
            bridge = ranks->bridge();
        }
        level_ = (int)option(argc, argv, "--level", FERMATA_LOCAL);
        every_ = option(argc, argv, "--every", 20);
        const char *config = option_text(argc, argv, "--config");
        const char *plain = option_text(argc, argv, "--plain");
        if (config) {
            const fermata_comm *comm = bridge.context ? &bridge : nullptr;
            check(fermata_init(config, comm, &session_, &error_));
        } else if (plain) {
            plain_ = plain;
            if (bridge.context) {
                plain_ += "." + std::to_string(ranks->rank());
            }
        }
    }

    // Protects `count` elements; again after the address has changed.
    template <class T> void keep(uint32_t id, T *data, size_t count, fermata_type type) {
        if (session_) {
            check(fermata_protect(session_, id, data, count, type, &error_));
        }
        if (id >= kept_.size()) {
            kept_.resize(id + 1);
        }
        kept_[id] = {data, count * sizeof(T)};
    }

    // Fills everything that is kept from the newest checkpoint; false if there is none.
    bool resume() {
        if (session_) {
            fermata_info info = {};
            info.size_of_this = sizeof(info);
            check(fermata_get_info(session_, &info, &error_));
            if (!info.recoverable) {
                return false;
            }
            check(fermata_recover(session_, nullptr, &error_));
            return true;
        }
        return !plain_.empty() && read_plain();
    }

    // To be called after each step, with all work on the device done or not.
    void step_done(long step) {
        if (session_ && every_ == 0) {
            check(fermata_snapshot(session_, nullptr, &error_));
        } else if (every_ > 0 && step % every_ == 0) {
            auto start = std::chrono::steady_clock::now();
            if (session_) {
                check(fermata_checkpoint(session_, step, level_, &error_));
            } else if (!plain_.empty()) {
                write_plain();
            }
            std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
            blocked_ += took.count();
            saves_++;
        }
    }

    // The job is done: its checkpoints are not needed any more.
    void done() {
        fermata_info info = {};
        info.size_of_this = sizeof(info);
        if (session_) {
            check(fermata_wait(session_, 600, &error_));
            check(fermata_get_info(session_, &info, &error_));
            check(fermata_finalize(session_, 1, &error_));
            session_ = nullptr;
        } else if (!plain_.empty()) {
            unlink(plain_.c_str());
        }
        fprintf(stderr,
                "{\"saves\":%ld,\"blocked_s\":%.6f,\"last_written\":%llu,\"recovery_level\":%d,"
                "\"integrity_s\":%.6f,\"data_s\":%.6f}\n",
                saves_, blocked_, (unsigned long long)info.last_written, info.recovery_level,
                info.recovery_integrity, info.recovery_data);
    }

  private:
    struct Kept {
        void *data;
        size_t bytes;
    };

    void check(fermata_status status) {
        if (status != FERMATA_OK) {
            fail("checkpoint library", fermata_error_message(error_));
        }
    }

    // Old content is never harmed: written beside, synced, renamed.
    void write_plain() {
        std::string beside = plain_ + ".new";
        FILE *f = fopen(beside.c_str(), "wb");
        std::vector<char> copy;
        bool ok = f != nullptr;
        for (const Kept &k : kept_) {
            copy.resize(k.bytes);
            ok = ok && cudaMemcpy(copy.data(), k.data, k.bytes, cudaMemcpyDefault) == cudaSuccess &&
                 fwrite(copy.data(), 1, k.bytes, f) == k.bytes;
        }
        ok = ok && fflush(f) == 0 && fsync(fileno(f)) == 0 && fclose(f) == 0 &&
             rename(beside.c_str(), plain_.c_str()) == 0;
        if (!ok) {
            fail(plain_.c_str(), "cannot be written");
        }
    }

    bool read_plain() {
        FILE *f = fopen(plain_.c_str(), "rb");
        if (!f) {
            return false;
        }
        std::vector<char> copy;
        for (const Kept &k : kept_) {
            copy.resize(k.bytes);
            if (fread(copy.data(), 1, k.bytes, f) != k.bytes) {
                fail(plain_.c_str(), "is too short");
            }
            CHECK(cudaMemcpy(k.data, copy.data(), k.bytes, cudaMemcpyDefault));
        }
        fclose(f);
        return true;
    }

    fermata *session_ = nullptr;
    fermata_error *error_ = nullptr;
    std::string plain_;
    std::vector<Kept> kept_;
    long every_ = 0, saves_ = 0;
    int level_ = FERMATA_LOCAL;
    double blocked_ = 0;
};
