! A program in Fortran with coarrays (OpenCoarrays over MPI): every image writes to one neighbour and reads from it, and all add up.
program ring
  implicit none
  integer, parameter :: long = 100000
  integer :: here[*], i, at, me, all, next, before, total
  integer, allocatable :: many(:)[:]
  integer, allocatable :: back(:)
  me = this_image()
  all = num_images()
  next = merge(1, me + 1, me == all)
  before = merge(all, me - 1, me == 1)
  allocate(many(long)[*], back(long))
  do i = 1, 20
    many = 0
    sync all
    here[next] = me * i
    many(:)[next] = [(me * 1000 + i + at, at = 1, long)]
    sync all
    if (here /= before * i) error stop 'another number'
    if (many(1) /= before * 1000 + i + 1 .or. many(long) /= before * 1000 + i + long) error stop 'other elements'
    back = many(:)[next]
    if (back(7) /= me * 1000 + i + 7) error stop 'a read gives something else'
    sync all
  end do
  total = me
  call co_sum(total)
  if (total /= all * (all + 1) / 2) error stop 'another sum'
  if (me == 1) print *, 'ok:', all, 'images'
end program
