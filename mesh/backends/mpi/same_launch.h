#pragma once

namespace meshtrain {

/// Initialises MPI and checks that all processes of the launch are the same build with the same arguments: ranks that
/// differ would wait for each other's collectives. One small all-reduce when they are; call it before any other
/// collective. Throws InputError, the same on all ranks, which names two ranks, their hosts and what differs.
///
/// A process that never comes here (another program, or one that has ended) lets MPI wait without an end. Rank 0 says
/// so after 20 s, and the job ends after 10 minutes.
void check_same_launch();

}  // namespace meshtrain
